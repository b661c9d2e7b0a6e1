"""Hypothesis strategies and state machines that draw examples for KV-cache implementations.

Examples consist of plain data (see `kvref.target`). Nothing here checks results: the laws judge the outcomes.
"""
