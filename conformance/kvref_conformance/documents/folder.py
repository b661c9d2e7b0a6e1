"""Check that kvref may write documents to a folder, and write each of them in one step."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path

from kvref_conformance.documents.schemas import REPORT


class ForeignDirectory(ValueError):
    """The folder holds something other than an earlier report. kvref does not write to it."""

    def __init__(self, directory: Path, reason: str, what: str = "report") -> None:
        super().__init__(
            f"will not write a {what} to {directory}: {reason}; "
            f"name a new or empty directory, or one with an earlier kvref {what}"
        )
        self.directory = directory


def claim(directory: Path, what: str = "report", schema: str = REPORT) -> None:
    """Create the folder. If it exists, check that it is empty or holds an earlier document of the same kind.

    `what` is the kind of document (its file is `{what}.json`), and `schema` is the name of its schema.
    `write_report` also calls this function. Call it yourself before a long run, so that you learn of an
    unusable folder before you wait for the result.

    Raises:
        ForeignDirectory: the folder holds something else, or is not a folder.
    """

    def foreign(reason: str) -> ForeignDirectory:
        return ForeignDirectory(directory, reason, what)

    try:
        directory.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise foreign("it is not a directory") from None
    if not any(directory.iterdir()):
        return
    name = f"{what}.json"
    try:
        earlier = json.loads((directory / name).read_bytes())
    except FileNotFoundError:
        raise foreign(f"it is not empty and has no {name}") from None
    except (OSError, ValueError):
        raise foreign(f"its {name} cannot be read") from None
    if not isinstance(earlier, dict) or earlier.get("schema") != schema:
        raise foreign(f"its {name} is not a {schema}")
    for folder in ("traces", "repro"):
        path = directory / folder
        # If this were a link, kvref would remove stale files and write new ones somewhere else.
        if path.is_symlink() or (path.exists() and not path.is_dir()):
            raise foreign(f"its {folder} is not a directory of its own")


def as_json(document: object) -> bytes:
    """Write a document as indented JSON in ASCII.

    A target's strings may have control codes. As ASCII JSON, they cannot reach your terminal if you print the
    file.
    """
    return (json.dumps(document, indent=1, allow_nan=False) + "\n").encode("ascii")


def write(path: Path, content: bytes) -> None:
    """Replace the file in one step. A reader sees the old content or the new content, never a part of it."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(content)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
