"""The vLLM that is installed in the worker's interpreter, as a target."""
