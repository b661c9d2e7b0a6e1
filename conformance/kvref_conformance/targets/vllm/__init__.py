"""vLLM, as installed in the worker's interpreter."""
