"""The plain data of a run, with its JSON schemas.

The profile, capabilities and the baseline go in. Rows and results, traces, and differences between two
reports come out. This package may import `laws` and `targets`.
"""
