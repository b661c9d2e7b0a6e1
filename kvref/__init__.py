"""kvref: an executable reference for the KV-cache core of LLM engines.

Import what you need from its modules:

* `kvref.specs`, `kvref.registry`, `kvref.platform`: what the layers of a model keep in the cache
* `kvref.uniform`, `kvref.planning`, `kvref.sharing`: groups of layers, and the memory that they get
* `kvref.layout`, `kvref.tensors`, `kvref.canonical`: where the memory is, and views of it
* `kvref.cache`: the cache manager that serves requests, with `kvref.coordinators`, `kvref.managers`,
  `kvref.pool`, `kvref.hashing` and `kvref.events`
* `kvref.offloading`: a KV connector
* `kvref.target`: the protocol of an implementation under test

`import kvref` imports neither these modules nor torch.
"""

__version__ = "0.1.0"
