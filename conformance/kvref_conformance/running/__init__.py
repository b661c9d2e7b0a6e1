"""Plan and run a check or a fuzz: start units, confirm the failures that they find, and reduce them.

A unit is one workload, run for one subject in a child process of its own. `checker.py` runs a check,
`fuzz.py` a fuzz. `exploring/` has the code that runs in the unit's process, together with the target.
`programs/` writes stand-alone programs. This package may import `processes`, `documents`, `laws` and
`targets`.
"""
