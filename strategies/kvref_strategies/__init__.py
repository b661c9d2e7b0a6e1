"""Hypothesis strategies and state machines that draw examples for KV-cache implementations.

They use plain data only (see `kvref.target`) and check nothing. Laws judge what comes out.
"""
