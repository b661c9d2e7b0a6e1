"""The reference as a target: for each part, the functions that call the package kvref."""
