"""Run the target in processes of its own, and talk to these processes.

A *host* is a process that imports the target once and forks a child for each connection. The first message on
a connection tells the child what to do.

This package may import `documents`, `laws` and `targets`. `releases.py` uses only the standard library,
because `.ci/vllm-env` runs it before anything is installed.
"""
