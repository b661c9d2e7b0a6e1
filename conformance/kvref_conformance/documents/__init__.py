"""The plain data of a run, with its JSON schemas: what goes in and what comes out.

In: the profile, capabilities, the baseline. Out: rows and results, traces, differences between two reports.
May import `laws` and `targets`.
"""
