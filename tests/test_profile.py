"""What a profile can declare, what each declaration does, and how kvref reports a mistake in a profile."""

from __future__ import annotations

import datetime
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kvref_conformance.commands.cli import cli
from kvref_conformance.documents import profile as profiles
from kvref_conformance.documents.capabilities import CAPABILITIES
from kvref_conformance.documents.profile import Profile, ProfileError, choose_profile
from kvref_conformance.documents.schemas import schema
from kvref_conformance.documents.toml_lines import Toml, TomlError
from kvref_conformance.running.loading import prepare

TARGETS = Path(__file__).parent / "targets"
TODAY = datetime.date.today()
LATER = TODAY + datetime.timedelta(days=30)
ISSUE = "https://example.org/1"
IDENTITY = "spec.merge-identity"
LANES = "[strategies.LanesSpec]\nlanes = [4]\n"
"""A declaration without which kvref cannot build all classes of the toy."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, which is empty."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def known(**changed: str) -> str:
    entry = {"law": IDENTITY, "subject": "FullAttentionSpec", "issue": ISSUE, "until": str(LATER), **changed}
    return "[[known]]\n" + "".join(f"{key} = '{value}'\n" for key, value in entry.items() if value)


def gap(law: str, subject: str, reason: str = "not built for it") -> str:
    return f"[[gap]]\nlaw = '{law}'\nsubject = '{subject}'\nreason = '{reason}'\n"


@dataclass
class Ran:
    code: int
    out: str
    err: str

    @property
    def report(self) -> dict[str, Any]:
        report: dict[str, Any] = json.loads(self.out)
        return report

    def rows(self, law: str = IDENTITY) -> dict[str, tuple[str, str]]:
        """Maps each subject, with its facet if it has one, to the row's status and message."""
        return {
            f"{row['subject']}{':' if row['facet'] else ''}{row['facet']}": (row["status"], row["message"])
            for row in self.report["laws"]
            if row["id"] == law
        }

    def statuses(self, law: str = IDENTITY) -> dict[str, str]:
        return {title: status for title, (status, _) in self.rows(law).items()}


def load(path: Path) -> Profile:
    return choose_profile(str(path), None)


def kvref(*arguments: str) -> Ran:
    done = CliRunner().invoke(cli, arguments)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return Ran(done.exit_code, done.stdout, done.stderr)


def check(profile: str, target: str | None = "vendor_toy:forgetful", law: str = IDENTITY, *more: str) -> Ran:
    """Check a target with this profile in the current folder."""
    Path("kvref.toml").write_text(profile)
    names = [target] if target else []
    return kvref("check", *names, "--path", str(TARGETS), "--laws", law, "--json", "-n", "2", *more)


# Errors name the line.


def refusal(text: str, name: str = "kvref.toml") -> str:
    Path(name).write_text(text)
    with pytest.raises(ProfileError) as caught:
        load(Path(name))
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a = 1\n\n[gap\n", "kvref.toml:3: not TOML: Expected ']' at the end of a table declaration"),
        ("path = [\n'x'", "kvref.toml:2: not TOML: Unclosed array"),
        ("stubs = []\nstubs = []\n", "kvref.toml:2: not TOML: Cannot overwrite a value"),
        ("\ntaget = 'vllm'\n", "kvref.toml:2: taget: unknown key; did you mean 'target'?"),
        ("[capability]\n", "kvref.toml:1: capability: unknown key; did you mean 'capabilities'?"),
        ("xyzzy = 1\n", "kvref.toml:1: xyzzy: unknown key\n    xyzzy = 1"),
        ("target = 3", "kvref.toml:1: target: must be a string, not 3"),
        ("target = 'vlm'", "kvref.toml:1: target: unknown target 'vlm'"),
        ("stubs = 'rebel'", "kvref.toml:1: stubs: must be a list, not 'rebel'"),
        ("stubs = [\n'rebel',\n'a-b',\n]", "kvref.toml:1: stubs[1]: must be the name of a module, not 'a-b'"),
        ("path = ['nowhere']", "kvref.toml:1: path[0]: there is no folder 'nowhere'"),
        ("known = 1", "kvref.toml:1: known: must be a list, not 1"),
        (known(issue=""), "kvref.toml:1: known[0]: 'issue' is missing\n    [[known]]"),
        (known(until=""), "kvref.toml:1: known[0]: 'until' is missing"),
        (known(unitl="x"), "kvref.toml:6: known[0].unitl: unknown key; did you mean 'until'?"),
        (known(issue="#12"), "kvref.toml:4: known[0].issue: must be the URL of an issue, not '#12'"),
        (known(until="soon"), "kvref.toml:5: known[0].until: must be a date such as 2026-12-31, not 'soon'"),
        (known(until="2030-02-31"), "kvref.toml:5: known[0].until: 2030-02-31 is not a date of the calendar"),
        (
            known(law="spec.merge-identiy"),
            "did you mean 'spec.merge-identity'?\n    law = 'spec.merge-identiy'",
        ),
        (known(law="spec.*"), "kvref.toml:2: known[0].law: no law is called 'spec.*'"),
        (
            known() + known(),
            "kvref.toml:6: known[1]: spec.merge-identity [FullAttentionSpec] is there already",
        ),
        (
            known(facet="x") + known(),
            "kvref.toml:7: known[1]: spec.merge-identity [FullAttentionSpec] is there",
        ),
        (gap("spec.*", "*", ""), "kvref.toml:4: gap[0].reason: must not be empty"),
        ("depth = 'thorough'", "kvref.toml:1: depth: must be one of quick, standard, deep, not 'thorough'"),
        ("budget = 0", "kvref.toml:1: budget: must be more than 0, not 0"),
        ("budget = '1h'", "kvref.toml:1: budget: must be a number, not '1h'"),
        ("targets = {}", "kvref.toml:1: targets: must not be empty"),
        ("[targets.a]\nstubs = []", "kvref.toml:1: targets.a: 'target' is missing"),
        ("[targets.a]\ntarget = 3", "kvref.toml:2: targets.a.target: must be a string, not 3"),
        ("[targets.a]\ntarget = 'vlm'", "kvref.toml:2: target: unknown target 'vlm'"),
        ("[targets.'a b']\ntarget = 'vllm'", "kvref.toml:1: targets.a b: a name is made of letters, digits"),
        (
            "path = ['x']\n[targets.a]\ntarget = 'vllm'",
            "kvref.toml:1: path: belongs into each of the tables [targets.NAME] (a)",
        ),
        (
            "[targets.a]\ntarget = 'vllm'\n[targets.a.targets.b]\ntarget = 'vllm'",
            "kvref.toml:3: targets.a.targets: there are no tables of targets in one of them",
        ),
        (gap("speck.*", "*"), "kvref.toml:2: gap[0].law: no law matches 'speck.*'"),
        (gap("target.answers", "*"), "kvref.toml:2: gap[0].law: target.answers cannot be left out"),
        (gap("spec.*", "A*") + gap("spec.*", "A*"), "kvref.toml:5: gap[1]: spec.* [A*] is there already"),
        ("capabilities = 3", "kvref.toml:1: capabilities: must be a table, not 3"),
        (
            "capabilities.never_pad = true",
            "capabilities.never_pad: unknown capability; did you mean 'never_pads'?",
        ),
        (
            "[capabilities]\nnever_pads = 1",
            "kvref.toml:2: capabilities.never_pads: must be true or false, not 1",
        ),
        ("capabilities.block_sizes = []", "kvref.toml:1: capabilities.block_sizes: must not be empty"),
        ("capabilities.block_sizes = [16, 16]", "capabilities.block_sizes: names something twice"),
        ("capabilities.block_sizes = ['a']", "capabilities.block_sizes[0]: must be a whole number, not 'a'"),
        (
            "capabilities.never_pads = {valeu = true}",
            "capabilities.never_pads.valeu: unknown key; did you mean",
        ),
        (
            "capabilities.never_pads = {reason = 'x'}",
            "kvref.toml:1: capabilities.never_pads: 'value' is missing",
        ),
        (
            "capabilities.never_pads = {value = true, reason = 3}",
            "never_pads.reason: must be a string, not 3",
        ),
        (
            "capabilities.override = false",
            "kvref.toml:1: capabilities.override: leaves out registry.override, registry.substitute: say",
        ),
        (
            "capabilities.page_scaling.X = 'cubic'",
            "capabilities.page_scaling.X: must be one of linear, constant",
        ),
        ("strategies.X = 3", "kvref.toml:1: strategies.X: must be a table, not 3"),
        ("[strategies.X]\nlanes = 4", "kvref.toml:2: strategies.X.lanes: must be a list, not 4"),
    ],
)
def test_a_mistake_is_told_with_its_line(text: str, told: str) -> None:
    assert told in refusal(text)


def test_every_mistake_is_told_in_the_order_of_the_lines() -> None:
    told = refusal("\nb = 1\n" + known(until="soon") + known(issue="x") + "a = 1\n")
    places = [line.split(": ")[0] for line in told.splitlines() if not line.startswith("    ")]
    assert places == [f"kvref.toml:{line}" for line in (2, 7, 11, 13)]


def test_an_expired_entry_is_refused_the_day_after() -> None:
    yesterday = TODAY - datetime.timedelta(days=1)
    told = f"expired: {IDENTITY} [FullAttentionSpec] was accepted until {yesterday} ({ISSUE})"
    assert f"kvref.toml:5: known[0].until: {told}" in refusal(known(until=str(yesterday)))
    assert load(written(known(until=str(TODAY)))).known[0].until == TODAY
    assert load(written(known(until="").rstrip() + f"\nuntil = {TODAY}\n")).known[0].until == TODAY


def written(text: str, name: str = "kvref.toml") -> Path:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(text)
    return Path(name)


def test_a_file_that_cannot_be_read_is_named() -> None:
    with pytest.raises(ProfileError, match=r"cannot read profile 'no\.toml': No such file"):
        load(Path("no.toml"))
    Path("latin.toml").write_bytes(b"# first\ntarget = '\xe9'\n")
    with pytest.raises(ProfileError, match=r"latin\.toml:2: not UTF-8"):
        load(Path("latin.toml"))
    with pytest.raises(ProfileError, match=r"pyproject\.toml: there is no table \[tool\.kvref\]"):
        load(written("[tool.other]\nx = 1\n", "pyproject.toml"))


def test_in_pyproject_lines_are_those_of_the_whole_file() -> None:
    text = '[project]\nname = "x"\ndescription = """\n[tool.kvref]\n"""\n\n[tool.kvref]\ntarget = "vllm"\n\n'
    nested = known(law="x.y").replace("[[known]]", "[[tool.kvref.known]]")
    assert "pyproject.toml:11: known[0].law: no law is called 'x.y'" in refusal(
        text + nested, "pyproject.toml"
    )


@pytest.mark.parametrize(
    ("text", "path", "line"),
    [
        ("a.b = 1\na.c = 2\n", ("a", "c"), 2),
        ("'x y'.\"z.w\" = 1\n", ("x y", "z.w"), 1),
        ("\n# [a]\n[a]\nb = [\n  1, # ]\n  2,\n]\nc = 3", ("a", "c"), 8),
        ("[a]\nb = [\n  1,\n  2,\n]\n", ("a", "b", 1), 2),
        ('a = """\n[b]\nc = 1\n"""\n[b]\nc = 2\n', ("b", "c"), 6),
        ("[[a]]\nb = 1\n[a.c]\nd = 1\n[[a]]\n[[a.e]]\n[[a.e]]\nf = 1\n", ("a", 1, "e", 1, "f"), 8),
        ("[[a]]\nb = 1\n[a.c]\nd = 1\n[[a]]\n", ("a", 0, "c", "d"), 4),
        ("[a.b]\nc = 1\n[a]\nd = 1\n", ("a",), 1),
        ("a = {b = {c = 1}}\n", ("a", "b", "c"), 1),
        ("[a]\n[b]\n", ("b", "c", "d"), 2),
        ("x = 1\r\ny = 2\r\n", ("y",), 2),
        ("", ("a",), 1),
    ],
)
def test_the_line_of_a_value(text: str, path: tuple[str | int, ...], line: int) -> None:
    assert Toml(text).line(path) == line


def test_what_is_not_toml_has_a_line() -> None:
    with pytest.raises(TomlError) as caught:
        Toml("a = 1\nb = [1,\n\n2 3]\n")
    assert (caught.value.line, caught.value.text) == (4, "2 3]")


# Mistakes that kvref sees only with the target at hand.


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            known(subject="FullAttention"),
            "kvref.toml:3: known[0].subject: spec.merge-identity has no such subject; ",
        ),
        (
            known(subject="LanesSpec"),
            "kvref.toml:3: known[0].subject: spec.merge-identity does not apply: no stra",
        ),
        (
            known() + gap("spec.merge-*", "Full*"),
            "spec.merge-identity is not run, because of the gap at kvref.toml:6",
        ),
        (gap("spec.*", "Half*"), "kvref.toml:3: gap[0].subject: spec.* has no such subject"),
        (
            "[strategies.LaneSpec]\nlanes = [1]",
            "kvref.toml:1: strategies.LaneSpec: the target has no such class; did",
        ),
        (
            "[strategies.LanesSpec]\nlane = [1]",
            "kvref.toml:2: strategies.LanesSpec.lane: LanesSpec has no such field;",
        ),
        (
            "[capabilities]\npage_scaling = {X = 'constant'}",
            "capabilities.page_scaling: the target has no class 'X'",
        ),
    ],
)
def test_what_the_target_does_not_have_is_refused(text: str, told: str) -> None:
    ran = check(text)
    assert ran.code == 2
    assert told in ran.err
    assert ran.out == ""


def test_a_mistake_ends_every_command_with_2(folder: Path) -> None:
    written("taget = 'vllm'")
    trace = written("{}", "trace.json")
    for arguments in (["check"], ["doctor"], ["check", "--profile", "none.toml"]):
        ran = kvref(*arguments)
        assert (ran.code, ran.out) == (2, "")
        assert ran.err.startswith("kvref: ")
    # The control: without the profile, doctor accepts the target.
    assert kvref("doctor", "vendor_toy:good", "--path", str(TARGETS), "--profile", "none").code == 0
    assert trace.exists()


# What each declaration does.


def test_without_a_profile_it_is_broken() -> None:
    """The control for the tests that follow."""
    ran = check("")
    assert ran.code == 1
    assert ran.report["verdict"] == "not conformant"
    assert ran.statuses() == {
        "FullAttentionSpec:head_size": "broken",
        "FullAttentionSpec:num_kv_heads": "broken",
        "PaddedSpec": "holds",
        "LanesSpec": "incomplete",
    }


def test_a_class_of_which_nothing_can_be_made_is_not_judged() -> None:
    ran = check("", "vendor_toy:good")
    assert (ran.code, ran.report["verdict"]) == (3, "incomplete")
    told = "no strategy for required field lanes: give values below [strategies.LanesSpec] in kvref.toml"
    assert ran.rows()["LanesSpec"] == ("incomplete", told)
    assert "LanesSpec" not in {row["subject"] for row in ran.report["laws"] if row["status"] == "holds"}
    assert check(LANES, "vendor_toy:good").code == 0
    # If the vendor's classes need not be judged, the profile has to say so.
    ran = check(gap("*", "LanesSpec"), "vendor_toy:good")
    assert (ran.code, ran.report["verdict"]) == (0, "conformant with declared gaps")
    assert ran.statuses()["LanesSpec"] == "declared-gap"


def test_what_is_not_judged_is_told_in_one_go() -> None:
    ran = kvref("check", "vendor_toy:good", "--path", str(TARGETS), "--laws", "spec.merge-*")
    assert ran.code == 3
    assert ran.out.count("no strategy for required field lanes: ") == 1
    ran = kvref("doctor", "vendor_toy:good", "--path", str(TARGETS))
    assert "cannot be judged\n  no strategy for required field lanes: " in ran.out
    assert re.search(r": \d laws\s+\[LanesSpec\]\n", ran.out)
    assert "next: kvref init vendor_toy:good --path " in ran.out


def test_a_known_failure_is_listed_with_its_issue_and_counts_no_more() -> None:
    ran = check(known(reason="being repaired") + LANES)
    assert (ran.code, ran.report["verdict"], ran.report["profile"]) == (0, "conformant", "kvref.toml")
    told = ("known", f"{ISSUE}, until {LATER}: being repaired")
    assert ran.rows()["FullAttentionSpec:head_size"] == told
    assert ran.rows()["FullAttentionSpec:num_kv_heads"] == told


def test_a_known_facet_hides_no_other() -> None:
    ran = check(known(facet="head_size"))
    assert ran.code == 1
    assert ran.statuses()["FullAttentionSpec:head_size"] == "known"
    assert ran.statuses()["FullAttentionSpec:num_kv_heads"] == "broken"


@pytest.mark.parametrize("facet", ["", "block_size"])
def test_a_known_failure_that_is_none_is_an_error(facet: str) -> None:
    ran = check(known(facet=facet), "vendor_toy:good")
    assert (ran.code, ran.report["verdict"]) == (1, "not conformant")
    status, message = ran.rows()[f"FullAttentionSpec{':' if facet else ''}{facet}"]
    assert status == "stale"
    assert message.startswith(f"kvref.toml:1 lists it as known ({ISSUE}), but it did not break in ")
    assert ran.statuses()["PaddedSpec"] == "holds"


def test_a_stale_facet_stands_beside_what_is_broken() -> None:
    ran = check(known(facet="block_size"))
    assert ran.statuses()["FullAttentionSpec:block_size"] == "stale"
    assert ran.statuses()["FullAttentionSpec:head_size"] == "broken"


def test_a_known_failure_that_was_not_looked_for_is_not_stale() -> None:
    ran = check(known() + LANES, "vendor_toy:good", "spec.copy-consistent")
    assert ran.code == 0
    ran = check(known(), "vendor_toy:good", IDENTITY, "--budget", "0")
    assert (ran.code, ran.statuses()["FullAttentionSpec"]) == (3, "incomplete")


def test_a_known_death_is_stale_only_if_everything_ran() -> None:
    profile = known(law="target.answers", subject="all operations")
    ran = check(profile, "vendor_toy:ends", "*.[am]*")
    assert set(ran.statuses("target.answers").values()) == {"known"}
    # The process ended, so the other laws were not judged.
    assert ran.code == 3
    ran = check(profile, "vendor_toy:good", "target.answers")
    assert "stale" not in ran.statuses("target.answers").values()


def test_a_gap_is_not_run() -> None:
    ran = check(gap("spec.merge-*", "Full*", "states are never merged") + LANES)
    assert (ran.code, ran.report["verdict"]) == (0, "conformant with declared gaps")
    assert ran.rows()["FullAttentionSpec"] == ("declared-gap", "states are never merged")
    assert ran.statuses()["PaddedSpec"] == "holds"
    # A law that does not apply is not a gap.
    ran = check(gap("spec.*", "*"), law="spec.padding-honoured")
    assert ran.statuses("spec.padding-honoured")["FullAttentionSpec"] == "not-applicable"


def test_where_nothing_but_gaps_is_left_nothing_was_judged() -> None:
    ran = check(gap("spec.merge-identity", "*"))
    assert (ran.code, ran.report["verdict"]) == (3, "incomplete")


def test_values_for_a_field_of_the_vendors() -> None:
    profile = "[strategies.LanesSpec]\nlanes = [4, 8]\nhead_size = [24]\n"
    ran = check(profile, "vendor_toy:good", "spec.merge-*", "--report", "report")
    assert ran.code == 0
    assert ran.statuses()["LanesSpec"] == "holds"
    assert examples(ran, "LanesSpec") > 20
    # The broken rows show which values were drawn: these and no others.
    forgetful = written(TOY_THAT_FORGETS_LANES, "forgets.py")
    ran = check(profile, f"{forgetful.stem}:target")
    observed = {row["observed"] for row in ran.report["laws"] if row["subject"] == "LanesSpec"}
    assert observed == {"head_size is 0, was 24; lanes is 0, was 4"}


TOY_THAT_FORGETS_LANES = """
import vendor_toy

def merge(specs):
    facts = vendor_toy.merge(specs)
    facts["fields"].update({name: 0 for name in ("lanes", "head_size") if "lanes" in facts["fields"]})
    return facts

def target():
    return vendor_toy.target(merge=merge)
"""


def examples(ran: Ran, subject: str) -> int:
    return next(row["examples"] for row in ran.report["laws"] if row["subject"] == subject)


def test_values_given_for_a_class_hold_for_what_derives_from_it() -> None:
    given = "[strategies.{}]\nlanes = [4]\nhead_size = [{}]\n"
    applied = load(
        written(given.format("LanesSpec", 24) + "[strategies.KVCacheSpec]\nhead_size = [40]\n")
    ).apply(DESCRIPTION)
    values = {(c["name"], f["name"]): f.get("values") for c in applied["classes"] for f in c["fields"]}
    assert values[("LanesSpec", "head_size")] == [24]
    assert values[("LanesSpec", "block_size")] is None
    assert values[("FullAttentionSpec", "head_size")] == [40]
    assert all("values" not in field for info in DESCRIPTION["classes"] for field in info["fields"])


def described() -> Any:
    sys.path.insert(0, str(TARGETS))
    try:
        import vendor_toy
    finally:
        sys.path.remove(str(TARGETS))
    return {
        "capabilities": {"quant_scales": True},
        "parts": ["specs"],
        "classes": vendor_toy.classes(),
        "plugin": None,
    }


DESCRIPTION = described()


def test_only_the_declared_block_sizes_are_drawn() -> None:
    """The vendor's specs refuse other block sizes, and an example with a refused spec judges nothing."""
    sizes = check("[capabilities]\nblock_sizes = [16, 48]\n", "vendor_toy:good")
    all_sizes = check("", "vendor_toy:good")
    assert examples(sizes, "FullAttentionSpec") > 90 > 70 > examples(all_sizes, "FullAttentionSpec")
    assert sizes.report["target"]["capabilities"] == {"block_sizes": [16, 48]}


def test_who_never_pads_is_asked_to_refuse() -> None:
    law, declared = "spec.padding-honoured", "[capabilities]\nnever_pads = {value = true, reason = 'fixed'}\n"
    assert check(declared, "vendor_toy:never_pads", law).statuses(law)["PaddedSpec"] == "holds"
    ran = check(declared, "vendor_toy:good", law)
    assert (ran.code, ran.statuses(law)["PaddedSpec:accepted"]) == (1, "broken")
    assert check("", "vendor_toy:good", law).statuses(law)["PaddedSpec"] == "holds"


def test_declared_capabilities_come_before_the_targets_own() -> None:
    assert load(written("")).apply(DESCRIPTION)["capabilities"] == {"quant_scales": True}
    applied = load(written("capabilities.quant_scales = false")).apply(DESCRIPTION)
    assert applied["capabilities"] == {"quant_scales": False}


DENSE = ("--subjects", "FullAttentionSpec")
"""A class of the toy that kvref can build without declarations."""

SEVERAL = """\
[targets.small]
target = "vendor_toy:good"
capabilities.block_sizes = [16]

[targets.large]
target = "vendor_toy:good"
capabilities.block_sizes = [128]

[targets.broken]
target = "vendor_toy:forgetful"
"""


def test_several_targets_in_one_file() -> None:
    for name, size in (("small", 16), ("large", 128)):
        ran = check(SEVERAL, name)
        assert ran.report["target"]["capabilities"] == {"block_sizes": [size]}
        assert ran.report["profile"] == f"kvref.toml [{name}]"
    # If a target belongs to only one of the profiles, its name selects that profile.
    assert check(SEVERAL, "vendor_toy:forgetful").report["profile"] == "kvref.toml [broken]"
    codes = [check(SEVERAL, name, IDENTITY, *DENSE).code for name in ("broken", "small")]
    assert codes == [1, 0]


def test_which_of_several_is_meant_must_be_said() -> None:
    told = "kvref.toml has several profiles, small (vendor_toy:good), large (vendor_toy:good)"
    for target, more in (
        ("vendor_toy:good", ": name one, as in 'kvref check small'"),
        (None, ", broken (vendor_toy:forgetful): name one"),
    ):
        ran = check(SEVERAL, target)
        assert (ran.code, told + more in " ".join(ran.err.split())) == (2, True)
    for unknown in ("huge", "vlm"):
        ran = check(SEVERAL, unknown)
        assert (ran.code, f"profiles for small, large, broken, and none for {unknown}" in ran.err) == (
            2,
            True,
        )
    ran = check(SEVERAL, "vendor_toy:never_pads", IDENTITY, "--profile", "kvref.toml")
    assert (ran.code, "small, large, broken, and none for vendor_toy:never_pads" in ran.err) == (2, True)
    other = check(SEVERAL, "vendor_toy:never_pads").report
    assert (other["profile"], len(other["notes"])) == (None, 1)
    assert "not used" in other["notes"][0]


def test_a_mistake_in_one_of_several_is_told_with_its_line() -> None:
    Path("kvref.toml").write_text(SEVERAL + known(law="spec.x").replace("known", "targets.broken.known"))
    with pytest.raises(ProfileError, match=r"^kvref\.toml:12: known\[0\]\.law: no law is called 'spec\.x'"):
        choose_profile(None, "broken")
    assert choose_profile(None, "small").capabilities == {"block_sizes": [16]}


def test_a_profile_says_how_much_is_checked() -> None:
    more = check("depth = 'standard'\n", "vendor_toy:good")
    assert more.report["depth"] == "standard"
    quick = check("depth = 'standard'\n", "vendor_toy:good", IDENTITY, "--depth", "quick")
    assert quick.report["depth"] == "quick"
    cut = check("budget = 1e-9\n", "vendor_toy:good")
    assert (cut.code, "incomplete" in cut.statuses().values()) == (3, True)
    assert check("budget = 1e-9\n", "vendor_toy:good", IDENTITY, *DENSE, "--budget", "600").code == 0


def test_what_the_target_contradicts_is_a_note() -> None:
    """kvref follows the profile and adds a note. Fewer values of a list are a choice and get no note."""
    contradicts = "[capabilities]\nreuse_order = {unkeyed = 'last', keyed = 'last'}\nlayouts = ['LBNHC']\n"
    for declared, told in (
        (contradicts, ["kvref.toml:2: reuse_order: "]),
        ("capabilities.layouts = ['LBNHC']", []),
        ("capabilities.layouts = ['LBNHC', 'CHNBL']", ["kvref.toml:1: layouts: "]),
    ):
        Path("kvref.toml").write_text(declared)
        ran = kvref("check", "reference", "--laws", "pool.null-block", "--json")
        notes = [note for note in ran.report["notes"] if note.startswith("kvref.toml")]
        assert [note.partition("the profile declares")[0] for note in notes] == told
        assert all(": the profile declares " in note and ", the target itself " in note for note in notes)
    assert notes[0] in " ".join(kvref("doctor", "reference").out.split())


def test_a_capability_that_is_declared_away_is_a_gap() -> None:
    written("capabilities.override = {value = false, reason = 'no release has it'}")
    assert "declared gaps\n  no release has it: registry.override, " in kvref("doctor").out
    assert "declared gap" not in kvref("doctor", "--profile", "none").out


@pytest.mark.parametrize("name", CAPABILITIES)
def test_no_capability_is_without_use(name: str) -> None:
    documents = Path(profiles.__file__).parent
    strategies = Path(sys.modules["kvref_strategies"].__file__ or "").parent
    laws = (documents.parent / "laws").glob("*.py")
    sources = [*laws, *strategies.glob("*.py"), documents / "profile.py"]
    assert any(f'"{name}"' in source.read_text() for source in sources)


def test_stubs_and_path_reach_the_worker(folder: Path) -> None:
    written("NAME = 'from the runtime'\n", "libraries/vendor_runtime.py")
    written(
        "target = 'vendor_toy:needs_runtime'\npath = ['../libraries']\nstubs = ['a', 'b.c']\n", "at/p.toml"
    )
    worker, _ = prepare(None, "at/p.toml", python=sys.executable, paths=["first"], stubs=["c", "a"])
    assert worker.target == "vendor_toy:needs_runtime"
    assert worker.paths == ("first", "at/../libraries")
    assert worker.stubs == ("c", "a", "b.c")
    ran = kvref("doctor", "--profile", "at/p.toml", "--path", str(TARGETS))
    assert ran.code == 0
    assert "target       from the runtime 1\n" in ran.out


def test_the_page_of_profiles_is_complete() -> None:
    page = (Path(__file__).parent.parent / "docs/profile.md").read_text(encoding="utf-8")
    for name, capability in CAPABILITIES.items():
        assert f"| `{name}` |" in page
        assert capability.what in page
    properties = schema("profile")["properties"]
    entries = [key for kind in ("known", "gap") for key in properties[kind]["items"]["properties"]]
    for key in [*properties, *entries]:
        assert f"`{key}`" in page or f"`[{key}]`" in page or f"`[[{key}]]`" in page


def test_the_example_of_the_page_is_a_profile(folder: Path) -> None:
    page = (Path(__file__).parent.parent / "docs/profile.md").read_text(encoding="utf-8")
    example = page.partition("```toml\n")[2].partition("```")[0]
    (folder / "build/stubs").mkdir(parents=True)
    profile = load(written(example.replace("2027-03-31", str(LATER))))
    assert (len(profile.known), len(profile.gaps), len(profile.stubs)) == (1, 1, 1)
    assert set(profile.capabilities) == {"block_sizes", "never_pads", "page_scaling"}


# Which profile is used.


def test_sources_in_order() -> None:
    assert choose_profile(None, None).name is None
    written("[tool.kvref]\ntarget = 'vllm'\n", "pyproject.toml")
    assert choose_profile(None, None).name == "pyproject.toml"
    written("target = 'reference'\n")
    assert choose_profile(None, None).name == "kvref.toml"
    other = written("target = 'vllm'\n", "sub/other.toml")
    assert choose_profile(str(other), None).name == str(other)
    assert choose_profile("none", None).name is None
    assert choose_profile("pyproject.toml", None).target == "vllm"


def test_a_pyproject_without_a_profile_is_no_profile() -> None:
    written("[tool.other]\nx = 1\n", "pyproject.toml")
    assert choose_profile(None, None).name is None


def test_a_profile_about_another_target_is_set_aside_unless_named() -> None:
    profile = "target = 'vendor_toy:good'\n" + known()
    ran = check(profile)
    assert ran.statuses()["FullAttentionSpec:head_size"] == "broken"
    assert ran.report["profile"] is None
    assert ran.report["notes"] == [
        "kvref.toml is for vendor_toy:good; it is not used (use it by --profile kvref.toml)"
    ]
    ran = check(profile, "vendor_toy:forgetful", IDENTITY, "--profile", "kvref.toml")
    assert ran.statuses()["FullAttentionSpec:head_size"] == "known"


def test_the_target_of_the_profile_is_the_default() -> None:
    ran = check("target = 'vendor_toy:forgetful'\n" + known() + LANES, None)
    assert (ran.code, ran.report["target"]["name"]) == (0, "vendor")


def test_doctor_tells_what_is_declared() -> None:
    written(
        "target = 'vendor_toy:forgetful'\ncapabilities.block_sizes = {value = [16], reason = 'wired'}\n"
        + known(facet="head_size")
        + gap("spec.copy-*", "Full*")
        + "[strategies.LanesSpec]\nlanes = [4]\n"
    )
    ran = kvref("doctor", "--path", str(TARGETS))
    assert ran.code == 0
    for line in (
        "profile      kvref.toml",
        "  capability block_sizes = [16] (wired)",
        f"  known spec.merge-identity [FullAttentionSpec: head_size]: {ISSUE}, until {LATER}",
        "  gap spec.copy-* [Full*]: not built for it",
        "  strategy LanesSpec.lanes = [4]",
        "declared gaps   not built for it: spec.copy-consistent [FullAttentionSpec]",
    ):
        assert " ".join(line.split()) in " ".join(ran.out.split())
    assert (
        "profile      none"
        in kvref("doctor", "vendor_toy:good", "--path", str(TARGETS), "--profile", "none").out
    )


def test_on_a_terminal_gaps_known_and_stale_are_told() -> None:
    written(known() + known(subject="PaddedSpec") + gap("spec.copy-*", "Full*", "never copied"))
    laws = ["--laws", IDENTITY, "--laws", "spec.copy-*"]
    ran = kvref("check", "vendor_toy:forgetful", "--path", str(TARGETS), *laws, "--report", "report", "-v")
    assert ran.code == 1
    assert f"known  {IDENTITY} [FullAttentionSpec: head_size]" in ran.out
    assert f"stale  {IDENTITY} [PaddedSpec]" in ran.out
    assert "declared gap: never copied: spec.copy-consistent" in ran.out
    assert "profile kvref.toml" in " ".join(ran.out.split())
    junit = Path("report/junit.xml").read_text()
    assert 'message="declared-gap: never copied"' in junit
    assert '<failure type="stale" message="kvref.toml:6 lists it as known' in junit


def in_pytest(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "kvref_conformance.plugin",
        "-o",
        "addopts=",
        "--pyargs",
        "kvref_conformance",
    ]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    options = ["--kv-path", str(TARGETS), "--kv-laws", IDENTITY, "--kv-laws", "spec.copy-*", "-rA"]
    return subprocess.run([*command, *options, *arguments], capture_output=True, text=True, env=environment)


def test_the_profile_in_pytest() -> None:
    written("target = 'vendor_toy:forgetful'\n" + known() + gap("spec.copy-*", "*Spec") + LANES, "p.toml")
    ran = in_pytest("--kv-profile", "p.toml")
    assert ran.returncode == 0, ran.stdout
    assert "1 skipped, 1 xfailed" in ran.stdout
    assert "declared-gap: not built for it" in ran.stdout
    ran = in_pytest("--kv-profile", "p.toml", "--kv-target", "vendor_toy:good")
    assert ran.returncode == 1
    assert "p.toml:2 lists it as known" in ran.stdout
    written("taget = 1")
    ran = in_pytest()
    assert ran.returncode == 4
    assert "kvref.toml:1: taget: unknown key" in ran.stdout + ran.stderr


def test_nothing_but_skips_is_no_pass_in_pytest() -> None:
    written(gap("spec.*", "*"), "p.toml")
    for options in (["--kv-target", "hostile_operations:without_attributes"], ["--kv-profile", "p.toml"]):
        ran = in_pytest("--kv-profile", "none", *options)
        assert ran.returncode == 1, ran.stdout
        assert "nothing was judged: " in ran.stdout
        assert "1 failed, 2 skipped" in ran.stdout
    written(LANES, "p.toml")
    control = in_pytest("--kv-profile", "p.toml", "--kv-target", "vendor_toy:good")
    assert (control.returncode, "3 passed" in control.stdout) == (0, True)


def test_the_profiles_in_docs_are_valid() -> None:
    folder = Path(__file__).parent.parent / "docs" / "profiles"
    assert {load(path).target for path in folder.glob("*.toml")} == {"vllm:rbln"}
