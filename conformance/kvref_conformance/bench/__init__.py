"""Benchmarks: how fast a target is, alone or compared with another one."""
