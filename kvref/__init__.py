"""kvref: an executable reference for the KV-cache core of LLM engines.

Import what you need from these modules:

* `kvref.specs`: what a layer asks of its cache
* `kvref.registry`, `kvref.platform`: which manager a spec class has, and how a plugin registers its own
  classes
* `kvref.uniform`, `kvref.planning`, `kvref.sharing`: put layers into groups, and plan the memory of the
  groups
* `kvref.layout`, `kvref.tensors`, `kvref.canonical`: where each byte of the cache is, and tensors that view
  it
* `kvref.cache`: the cache manager, which finds prefix hits and allocates blocks for requests. It is built
  from `kvref.coordinators`, `kvref.managers`, `kvref.pool`, `kvref.hashing` and `kvref.events`.
* `kvref.offloading`: a KV connector that copies blocks to host memory and back
* `kvref.target`: the protocol of an implementation under test

`import kvref` alone loads none of these modules, and not torch either.
"""

__version__ = "0.1.0"
