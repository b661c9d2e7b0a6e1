"""kvref: an executable reference for the KV-cache core of LLM engines.

Import what you need from its modules: `kvref.specs`, `kvref.registry`, `kvref.platform`, `kvref.target`.
Importing `kvref` itself loads nothing else, not even torch.
"""

__version__ = "0.1.0"
