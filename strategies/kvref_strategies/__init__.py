"""Hypothesis strategies and state machines that generate work for KV-cache implementations.

They draw and exchange plain data only (see `kvref.target`) and check nothing: judging is for the laws.
"""
