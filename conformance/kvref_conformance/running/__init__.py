"""What kvref's own process does: plan units, run them, confirm failures, fuzz, measure the time to find.

`checker.py` runs a check. `exploring/` runs inside the target's process; `programs/` writes stand-alone
programs. This package may import `processes`, `documents`, `laws` and `targets`.
"""
