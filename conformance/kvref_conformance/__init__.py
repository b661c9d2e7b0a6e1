"""The conformance suite: the laws, the processes that run them, and the reports."""
