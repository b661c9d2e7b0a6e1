"""A vLLM platform plugin for an accelerator that does not exist, with only what the KV-cache core sees.

It has no kernels, so it runs no model. vLLM imports this module while it looks for a platform, so the module
must not import vLLM.
"""


def register() -> str:
    """Return the name of the platform class: vLLM calls this through the entry point."""
    return "vllm_bankdev.platform.BankdevPlatform"
