"""Profiles: what a vendor declares about an implementation (docs/profile.md)."""

from __future__ import annotations

import copy
import datetime
import fnmatch
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from kvref_conformance.documents.capabilities import CAPABILITIES
from kvref_conformance.documents.profile_file import (
    Problem,
    ProfileError,
    Source,
    find,
    meant,
    problems_of,
    read,
)
from kvref_conformance.documents.results import Row
from kvref_conformance.laws import ANSWERS, LAWS
from kvref_conformance.laws.subjects import subjects_of
from kvref_conformance.targets import BUILT_IN, UnknownTarget, check_name, without_release
from kvref_strategies.workload import Description

__all__ = ["NO_PROFILE", "Gap", "KnownFailure", "Profile", "ProfileError", "choose_profile"]


@dataclass(frozen=True)
class KnownFailure:
    """A failure that the vendor accepts up to and including a day. The facet None stands for any facet."""

    law: str
    subject: str
    facet: str | None
    issue: str
    until: datetime.date
    reason: str
    place: str

    @property
    def title(self) -> str:
        return f"{self.law} [{self.subject}{': ' + self.facet if self.facet else ''}]"

    @property
    def message(self) -> str:
        return f"{self.issue}, until {self.until}{': ' + self.reason if self.reason else ''}"

    def covers(self, row: Row) -> bool:
        return (self.law, self.subject) == (row.law, row.subject) and self.facet in (None, row.facet)


@dataclass(frozen=True)
class Gap:
    """Laws that kvref does not run for some subjects. `law` and `subject` are globs, such as `spec.*`."""

    law: str
    subject: str
    reason: str
    place: str

    def covers(self, law: str, subject: str) -> bool:
        # All operations feed `target.answers`, so it cannot be left out.
        return (
            law != ANSWERS.id
            and fnmatch.fnmatchcase(law, self.law)
            and fnmatch.fnmatchcase(subject, self.subject)
        )


@dataclass(frozen=True)
class Profile:
    """What a vendor declares about a target, checked as far as possible without loading that target."""

    source: Source | None = None
    known: tuple[KnownFailure, ...] = ()
    gaps: tuple[Gap, ...] = ()
    """The gaps that the profile lists in `[[gap]]`, then those that follow from its capabilities."""
    notes: tuple[str, ...] = ()
    """Messages to the user: why kvref does not use the profile, or where the target contradicts it."""

    @property
    def name(self) -> str | None:
        """The path of the profile's file. If the file has several profiles, the label follows in brackets."""
        if self.source is None:
            return None
        return f"{self.source.path} [{self.label}]" if self.label else str(self.source.path)

    @property
    def label(self) -> str | None:
        """The profile's name, if the file has several profiles."""
        if self.source is None or "targets" not in self.source.root:
            return None
        return self.source.root[-1]

    @property
    def target(self) -> str | None:
        name: str | None = self._document.get("target")
        return name

    @property
    def depth(self) -> str | None:
        """The declared depth of a check. It sets how many examples the check makes."""
        depth: str | None = self._document.get("depth")
        return depth

    @property
    def budget(self) -> float | None:
        """Seconds after which a check stops, as declared."""
        budget: float | None = self._document.get("budget")
        return budget

    @property
    def stubs(self) -> tuple[str, ...]:
        """Modules that kvref replaces by stubs, because they need hardware."""
        return tuple(self._document.get("stubs", ()))

    @property
    def paths(self) -> tuple[str, ...]:
        """Folders to import from first. In the file, relative paths start from the folder of the file."""
        folder = self.source.path.parent if self.source else Path()
        return tuple(str(folder / path) for path in self._document.get("path", ()))

    @cached_property
    def capabilities(self) -> dict[str, Any]:
        """The declared value of each capability, by name."""
        declared = self._document.get("capabilities", {})
        return {name: _declared(name, entry)[0] for name, entry in declared.items()}

    @property
    def strategies(self) -> dict[str, dict[str, list[Any]]]:
        """The values that examples may give to fields of specs, by spec class and field, as declared."""
        menus: dict[str, dict[str, list[Any]]] = self._document.get("strategies", {})
        return menus

    @property
    def _document(self) -> dict[str, Any]:
        return self.source.document if self.source else {}

    def gap(self, law: str, subject: str) -> Gap | None:
        """The first gap that covers this law and subject, or None."""
        return next((gap for gap in self.gaps if gap.covers(law, subject)), None)

    def known_for(self, law: str, subject: str) -> list[KnownFailure]:
        return [entry for entry in self.known if (entry.law, entry.subject) == (law, subject)]

    def failure(self, row: Row) -> KnownFailure | None:
        """The first known failure that covers a broken row, or None."""
        return next((entry for entry in self.known if entry.covers(row)), None)

    def declarations(self) -> Iterator[str]:
        """Everything that the profile declares, one line of text for each declaration."""
        for key in ("target", "stubs", "path", "depth", "budget"):
            if key in self._document:
                yield f"{key} = {json.dumps(self._document[key])}"
        for name, entry in self._document.get("capabilities", {}).items():
            value, reason = _declared(name, entry)
            yield f"capability {name} = {json.dumps(value)}{f' ({reason})' if reason else ''}"
        for failure in self.known:
            yield f"known {failure.title}: {failure.message}"
        for gap in self.gaps:
            yield f"gap {gap.law} [{gap.subject}]: {gap.reason}"
        for class_name, fields in self.strategies.items():
            for field, values in fields.items():
                yield f"strategy {class_name}.{field} = {json.dumps(values)}"

    def beside(self, description: Description) -> Profile:
        """Return the profile, with a note for each capability in which it contradicts the target's own value.

        The value in the profile counts. If the value is a list, the profile may leave out values that the
        target lists; kvref then does not check them, and there is no note. A value that only the profile
        lists is a contradiction.
        """
        if self.source is None:
            return self
        notes = []
        for name, value in self.capabilities.items():
            own = description["capabilities"].get(name)
            fewer = isinstance(value, list) and isinstance(own, list) and all(each in own for each in value)
            if own is not None and own != value and not fewer:
                notes.append(
                    f"{self.source.place('capabilities', name)}: {name}: the profile declares "
                    f"{json.dumps(value)}, the target itself {json.dumps(own)}"
                )
        return replace(self, notes=(*self.notes, *notes))

    def apply(self, description: Description) -> Description:
        """Return the description of the target with the profile's capabilities and field values in it.

        Raises:
            ProfileError: the profile names a class, field or subject that the target does not have, or lists
                a known failure of a law that is not run.
        """
        if self.source is None:
            return description
        applied = copy.deepcopy(description)
        applied["capabilities"].update(self.capabilities)
        menus = copy.deepcopy(self.strategies)
        if block_sizes := self.capabilities.get("block_sizes"):
            menus.setdefault("KVCacheSpec", {}).setdefault("block_size", block_sizes)
        for info in applied["classes"]:
            for field in info["fields"]:
                # The nearest ancestor decides.
                given = [menus[name] for name in info["mro"] if field["name"] in menus.get(name, {})]
                if given:
                    field["values"] = given[0][field["name"]]
        self.source.refuse(self._strangers(applied))
        return applied

    def _strangers(self, description: Description) -> Iterator[Problem]:
        """Find declarations that do not fit the target: see `apply`."""
        classes = {info["name"]: info for info in description["classes"]}
        for capability in ("own_tables", "page_scaling"):
            for name in self.capabilities.get(capability, ()):
                if name not in classes:
                    text = f"the target has no class {name!r}{meant(name, classes)}"
                    yield Problem(("capabilities", capability), text)
        for name, fields in self.strategies.items():
            if name not in classes:
                yield Problem(("strategies", name), f"the target has no such class{meant(name, classes)}")
                continue
            having = [info for info in classes.values() if name in info["mro"]]
            known = {field["name"] for info in having for field in info["fields"]}
            for field in fields:
                if field not in known:
                    text = f"{name} has no such field{meant(field, known)}"
                    yield Problem(("strategies", name, field), text)
        subjects = {law.id: subjects_of(law, description) for law in LAWS.values()}
        for number, entry in enumerate(self.known):
            of_law, place = subjects[entry.law], ("known", number, "subject")
            if entry.subject not in of_law and "" not in of_law:
                yield Problem(place, f"{entry.law} has no such subject{meant(entry.subject, of_law)}")
            elif (why_not := of_law.get(entry.subject, of_law.get(""))) is not None:
                yield Problem(place, f"{entry.law} does not apply: {why_not}")
            elif gap := self.gap(entry.law, entry.subject):
                yield Problem(place, f"{entry.law} is not run, because of the gap at {gap.place}")
        for number, gap in enumerate(self.gaps[: len(self._document.get("gap", ()))]):
            if not any(gap.covers(law, subject) for law in subjects for subject in subjects[law]):
                names = {subject for of_law in subjects.values() for subject in of_law}
                text = f"{gap.law} has no such subject{meant(gap.subject, names)}"
                yield Problem(("gap", number, "subject"), text)


NO_PROFILE = Profile()


def choose_profile(choice: str | None, target: str | None) -> Profile:
    """Find the profile to use: in the chosen file, or in the current folder if it is for this target.

    If there is none, the result is a profile that declares nothing.

    Args:
        choice: the path of a file, "none" for no profile, or None if the user chose nothing.
        target: a target, or the name of one of several profiles in the file, or None if the user named none.

    Raises:
        ProfileError: the profile cannot be used.
    """
    if choice == "none":
        return NO_PROFILE
    path = Path(choice) if choice is not None else find(Path())
    if path is None:
        return NO_PROFILE
    source = read(path)
    about = {name: source.document["targets"][name]["target"] for name in source.names}
    if about:
        # First this very target, then another release of it.
        exact = [name for name in about if target in (None, name, about[name])]
        names = exact or [name for name in about if _alike(target, about[name])]
        if len(names) > 1:
            listed = ", ".join(f"{name} ({about[name]})" for name in names)
            raise ProfileError(
                f"{path} has several profiles, {listed}: name one, as in 'kvref check {names[0]}'"
            )
        if names:
            return _checked(source.named(names[0]))
        if choice is not None or not (":" in (target or "") or without_release(target or "")[0] in BUILT_IN):
            raise ProfileError(f"{path} has profiles for {', '.join(about)}, and none for {target}")
        return Profile(notes=(f"{path} is for {', '.join(about.values())}; it is not used",))
    profile = _checked(source)
    if choice is None and not (profile.target is None or _alike(target, profile.target)):
        return Profile(
            notes=(f"{path} is for {profile.target}; it is not used (use it by --profile {path})",)
        )
    return profile


def _alike(target: str | None, other: str) -> bool:
    """Whether both names mean the same target, in whatever release. None matches every target."""
    return target is None or without_release(target)[0] == without_release(other)[0]


def _checked(source: Source) -> Profile:
    document = source.document
    source.refuse(_mistakes(source))
    known = tuple(
        KnownFailure(
            law=entry["law"],
            subject=entry["subject"],
            facet=entry.get("facet"),
            issue=entry["issue"],
            until=datetime.date.fromisoformat(entry["until"]),
            reason=entry.get("reason", ""),
            place=source.place("known", number),
        )
        for number, entry in enumerate(document.get("known", ()))
    )
    gaps = [
        Gap(**entry, place=source.place("gap", number))
        for number, entry in enumerate(document.get("gap", ()))
    ]
    for name, entry in document.get("capabilities", {}).items():
        value, reason = _declared(name, entry)
        place = source.place("capabilities", name)
        gaps += [Gap(law, "", reason, place) for law in _turned_off(name, value)]
    return Profile(source, known, tuple(gaps))


def _mistakes(source: Source) -> Iterator[Problem]:
    """Find entries that fit the schema and are wrong all the same, such as unknown laws or expired dates."""
    document = source.document
    if "target" in document:
        try:
            check_name(without_release(document["target"])[0])
        except UnknownTarget as error:
            yield Problem(("target",), str(error))
    for number, folder in enumerate(document.get("path", ())):
        if not (source.path.parent / folder).is_dir():
            yield Problem(("path", number), f"there is no folder {folder!r}")
    for name, entry in document.get("capabilities", {}).items():
        yield from _mistakes_in_capability(name, entry)
    yield from _mistakes_in_known(document.get("known", ()))
    yield from _mistakes_in_gaps(document.get("gap", ()))


def _mistakes_in_capability(name: str, entry: Any) -> Iterator[Problem]:
    path = ("capabilities", name)
    if name not in CAPABILITIES:
        yield Problem(path, f"unknown capability{meant(name, CAPABILITIES)}")
        return
    capability = CAPABILITIES[name]
    form: dict[str, Any] = capability.value
    if _has_reason(name, entry):
        form = {
            "type": "object",
            "additionalProperties": False,
            "required": ["value"],
            "properties": {"value": capability.value, "reason": {"type": "string", "minLength": 1}},
        }
    if problems := list(problems_of(entry, form, path)):
        yield from problems
        return
    value, reason = _declared(name, entry)
    if not reason and (laws := _turned_off(name, value)):
        text = f"leaves out {', '.join(laws)}: say why, {name} = {{value = false, reason = '...'}}"
        yield Problem(path, text)


def _mistakes_in_known(entries: Iterable[dict[str, Any]]) -> Iterator[Problem]:
    seen: list[tuple[str, str, str | None]] = []
    for number, entry in enumerate(entries):
        law, subject, facet = entry["law"], entry["subject"], entry.get("facet")
        if law not in LAWS:
            yield Problem(("known", number, "law"), f"no law is called {law!r}{meant(law, LAWS)}")
        try:
            until = datetime.date.fromisoformat(entry["until"])
        except ValueError:
            yield Problem(("known", number, "until"), f"{entry['until']} is not a date of the calendar")
        else:
            if until < datetime.date.today():
                text = f"expired: {law} [{subject}] was accepted until {until} ({entry['issue']})"
                yield Problem(("known", number, "until"), text)
        if any((law, subject) == (a, b) and (facet == c or None in (facet, c)) for a, b, c in seen):
            yield Problem(("known", number), f"{law} [{subject}] is there already, further up")
        seen.append((law, subject, facet))


def _mistakes_in_gaps(entries: Iterable[dict[str, Any]]) -> Iterator[Problem]:
    seen = []
    for number, entry in enumerate(entries):
        law, subject = entry["law"], entry["subject"]
        if not fnmatch.filter(LAWS, law):
            yield Problem(("gap", number, "law"), f"no law matches {law!r}{meant(law, LAWS)}")
        elif law == ANSWERS.id:
            text = f"{law} cannot be left out: leave out the law whose operations end the process"
            yield Problem(("gap", number, "law"), text)
        if (law, subject) in seen:
            yield Problem(("gap", number), f"{law} [{subject}] is there already, further up")
        seen.append((law, subject))


def _turned_off(name: str, value: Any) -> list[str]:
    """The laws that do not apply if a capability has this value."""
    return [law.id for law in LAWS.values() if name in law.capabilities and value is False]


def _declared(name: str, entry: Any) -> tuple[Any, str]:
    """The value that an entry declares for a capability, and the entry's reason or ""."""
    return (entry["value"], entry.get("reason", "")) if _has_reason(name, entry) else (entry, "")


def _has_reason(name: str, entry: Any) -> bool:
    """Whether the entry of a capability is a table `{value, reason}`, not the plain value."""
    is_table = CAPABILITIES[name].value["type"] == "object"
    return isinstance(entry, dict) and ("value" in entry or not is_table)
