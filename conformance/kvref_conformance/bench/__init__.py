"""How fast a target is, alone or beside another one: what is timed, how, and what comes of it."""
