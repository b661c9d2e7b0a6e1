"""The target's processes: their environments, the hosts that import the target, and channels to them.

A host imports the target and forks. Each child serves one connection: its first request says what to do. This
package may import `documents`, `laws` and `targets`. `releases.py` uses only the standard library, because
`.ci/vllm-env` needs it before anything is installed.
"""
