"""A vLLM platform plugin for an accelerator that does not exist: what the KV-cache core sees of one.

There are no kernels, so no model runs on it. vLLM imports this module while it looks for a platform, so it
must not import vLLM itself.
"""


def register() -> str:
    """Name the platform, as the entry point is asked to."""
    return "vllm_bankdev.platform.BankdevPlatform"
