"""Explore one unit inside the target's process: draw examples, perform, judge and reduce them."""
