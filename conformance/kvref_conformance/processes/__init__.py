"""Processes of the target: environments, hosts that import it, children that they fork, channels to them.

A host forks, performs operations and ends. What else a child does, the request names. May import `documents`,
`laws` and `targets`. `releases.py` uses the standard library alone: `.ci/vllm-env` needs it before anything
is installed.
"""
