"""The command `kvref`. If a package is not installed, it says which extra to install."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line. If a package is missing, print one line that names it, and exit with 2."""
    try:
        from kvref_conformance.commands.cli import cli
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing.startswith("kvref"):
            raise
        print(
            f"kvref: this command needs {missing!r}, which comes with the extra: "
            "pip install 'kvref[conformance]'",
            file=sys.stderr,
        )
        sys.exit(2)
    cli()


if __name__ == "__main__":
    main()
