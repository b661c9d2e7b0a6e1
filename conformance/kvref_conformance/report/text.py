"""Make any string safe to show. Names and messages come from the target, and may contain anything."""

from __future__ import annotations


def visible(text: str, limit: int = 10_000, encoding: str = "utf-8") -> str:
    """The text on one line, with escapes for characters that do not print (control codes, bidi marks, ...).

    The result is legal in XML and fits the encoding. A long text is cut to `limit` characters.
    """
    kept = text if len(text) <= limit else text[: limit - 3] + "..."
    if not kept.isprintable():
        kept = "".join(char if char.isprintable() else _escape(char) for char in kept)
    return kept.encode(encoding, "backslashreplace").decode(encoding)


def visible_lines(text: str, limit: int = 10_000) -> str:
    """Like `visible`, but line breaks are kept."""
    return "\n".join(visible(line, limit) for line in text[:limit].splitlines())


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")
