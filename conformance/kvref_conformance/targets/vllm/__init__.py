"""The vLLM of the target's interpreter as a target: for each part, the functions that call vLLM."""
