"""The fast half of the reference: the same answers as the plain half, in less time.

What belongs here is whatever is only there for speed: compact data structures, shortcuts, copies on a device.
Each module overrides a few methods or functions of its plain namesake and keeps the interface. A module here
may import anything of `kvref`. No module outside of `kvref.fast` imports one of these.

The laws `pool.variants-agree` and `manager.variants-agree` compare the two halves. `kvref check
reference:fast` checks this half, and `kvref bench reference` times it.
"""
