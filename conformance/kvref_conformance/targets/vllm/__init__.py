"""The vLLM that is installed for the target's interpreter, as a target."""
