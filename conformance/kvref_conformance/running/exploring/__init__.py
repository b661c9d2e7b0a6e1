"""Run one unit in the target's process: draw examples, perform them, judge them, reduce failures."""
