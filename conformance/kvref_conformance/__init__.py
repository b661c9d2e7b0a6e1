"""The conformance suite: laws, the processes that run them, and the reports they end in."""
