"""The parts of `reference:fast` that differ from those of `reference`."""
