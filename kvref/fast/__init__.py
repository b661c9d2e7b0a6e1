"""The fast half of the reference: it gives the same answers as the plain half, in less time.

Code belongs here if its only purpose is speed: compact data structures, shortcuts, copies on a device.
`pool.py` is a second pool with the same interface as the plain one. `cache.py` and `canonical.py` override a
few methods and functions of the plain modules with the same names. `device_copy.py` and `device_kernel.py`
copy blocks on a CUDA device. A module here may import any module of `kvref`. No module outside `kvref.fast`
imports a module from here.

The laws `pool.variants-agree` and `manager.variants-agree` compare the two halves. `kvref check
reference:fast` checks this half, and `kvref bench reference` times it.
"""
