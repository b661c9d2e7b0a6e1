"""The reference implementation as a target."""
