"""The work of a check, in the parent: plan units, run them, confirm what broke, fuzz, measure time to find.

`checker.py` runs a check. `exploring/` runs inside the target's process; `programs/` writes stand-alone
programs. May import `processes`, `documents`, `laws` and `targets`.
"""
