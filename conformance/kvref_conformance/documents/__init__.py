"""The plain data that a run reads and writes, and its JSON schemas.

A run reads a profile, capabilities and a baseline. It writes a result, which has a row for each law, subject
and facet, and a trace for each finding. `diff.py` compares two reports.

This package may import `laws` and `targets`.
"""
