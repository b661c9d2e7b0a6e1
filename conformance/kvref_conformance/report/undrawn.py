"""Show which inputs no example had, with a line for each operation and kind of input."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


def lines(undrawn: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the lines to print. Each has two parts: what the line is about, and the inputs."""
    found: dict[str, list[str]] = {}
    besides: dict[str, dict[str, list[str]]] = {}
    for key in undrawn:
        group, _, what = key.partition(": ")
        if group in ("content", "pool", "engine"):
            found.setdefault(group, []).append(what)
        elif " beside " in what:
            name, _, other = what.partition(" beside ")
            # `A beside B` and `B beside A` mean the same, so only one of them is listed.
            if name not in besides.setdefault(group, {}).get(other, ()):
                besides[group].setdefault(name, []).append(other)
        elif what.endswith((" lowest", " highest")):
            found.setdefault(f"{group}, at an end", []).append(what)
        else:
            found.setdefault(group, []).append(what)
    yield from ((about, ", ".join(whats)) for about, whats in found.items())
    for group, pairs in besides.items():
        yield (
            f"{group}, beside",
            "; ".join(f"{name} + {', '.join(others)}" for name, others in pairs.items() if others),
        )
