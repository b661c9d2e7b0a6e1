"""Stand-alone programs: scripts that show a broken law and need only the target."""
