"""vLLM plugin, loaded in each of its processes through the entry point `vllm.general_plugins`."""


def register() -> None:
    """Correct the CPU build; on any other platform nothing changes."""
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        from rehearsal.cpu import loopback, lora_ops

        lora_ops.install()
        loopback.install()
