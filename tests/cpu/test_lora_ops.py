"""The CPU LoRA operators: rows without an adapter get nothing, mixed rows each get their own."""

import pytest

torch = pytest.importorskip("torch")

from rehearsal.cpu import lora_ops  # noqa: E402


def expected(inputs, weights, slots):
    out = torch.zeros(inputs.shape[0], weights.shape[1])
    for row, slot in enumerate(slots.tolist()):
        if slot >= 0:
            out[row] = weights[slot] @ inputs[row]
    return out


@pytest.mark.parametrize("slots", [[0, 0, 0], [-1, -1, -1], [0, -1, 1], [-1, 1, -1], [1, 1, 0]])
@pytest.mark.parametrize("add", [True, False])
def test_expand_equals_a_product_per_row(slots, add):
    torch.manual_seed(0)
    slots = torch.tensor(slots)
    inputs, weights = torch.randn(3, 4), torch.randn(2, 6, 4)
    start = torch.randn(3, 6)
    output = start.clone()
    lora_ops.bgmv_expand(inputs, weights, output, slots, add_inputs=add)
    wanted = expected(inputs, weights, slots) + (start if add else 0)
    torch.testing.assert_close(output, wanted)


@pytest.mark.parametrize("slots", [[0, -1, 1], [-1, -1, -1]])
def test_shrink_scales_and_leaves_rows_without_adapter_zero(slots):
    torch.manual_seed(1)
    slots = torch.tensor(slots)
    inputs, weights = torch.randn(3, 6), torch.randn(2, 4, 6)
    output = torch.full((3, 4), 7.0)
    lora_ops.bgmv_shrink(inputs, weights.unsqueeze(1), output, slots, scaling=0.5)
    torch.testing.assert_close(output, 0.5 * expected(inputs, weights, slots))


def test_a_slice_is_written_where_it_belongs():
    inputs, weights, slots = torch.ones(2, 3), torch.ones(1, 2, 3), torch.tensor([0, -1])
    output = torch.zeros(2, 6)
    lora_ops.bgmv_expand_slice(inputs, weights, output, slots, 2, 2)
    assert output.tolist() == [[0, 0, 3, 3, 0, 0], [0, 0, 0, 0, 0, 0]]


def test_install_replaces_what_vllm_calls():
    pytest.importorskip("vllm")
    lora_ops.install()
    import vllm.lora.punica_wrapper.punica_cpu as wrapper

    assert wrapper.bgmv_expand is lora_ops.bgmv_expand
