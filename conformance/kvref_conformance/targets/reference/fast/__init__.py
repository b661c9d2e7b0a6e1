"""The parts of `reference:fast` that call the fast code (`kvref.fast`). The others are as in `reference`."""
