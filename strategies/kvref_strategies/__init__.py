"""Hypothesis strategies and state machines that draw examples for KV-cache implementations.

The strategies use plain data only (see `kvref.target`). They check nothing: the laws judge the outcomes.
"""
