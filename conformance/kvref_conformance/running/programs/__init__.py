"""Stand-alone programs: the script that shows a broken law with the target alone."""
