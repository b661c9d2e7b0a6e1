"""What explores one unit inside the target's process: draw examples, perform, judge, reduce."""
