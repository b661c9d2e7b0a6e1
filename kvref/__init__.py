"""kvref: an executable reference for the KV-cache core of LLM engines.

Import what you need from its modules. `kvref.specs`, `kvref.registry` and `kvref.platform` say what layers
store; `kvref.uniform` and `kvref.planning` make groups of them; `kvref.cache` serves requests, by way of
`kvref.coordinators`, `kvref.managers`, `kvref.pool`, `kvref.hashing` and `kvref.events`; `kvref.target` is
the protocol of an implementation under test. Importing `kvref` itself loads nothing else, not even torch.
"""

__version__ = "0.1.0"
