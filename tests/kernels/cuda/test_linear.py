"""Linear layers and their gradients equal PyTorch's. The kernels run in Triton's interpreter."""

import pytest

pytest.importorskip("triton")

import torch
from torch.nn import functional

from regard.kernels.cuda.linear import bias_grad, concat, linear, linears, reduce_partial_sums

pytestmark = pytest.mark.start_early(13)


@pytest.mark.parametrize("shape", [(1, 3), (33, 130), (700, 5)])
def test_bias_grad_sums_columns_in_float32(shape: tuple[int, int]) -> None:
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(bias_grad(x), x.sum(dim=0), atol=1e-4, rtol=1e-4)
    exact = bias_grad(x.half(), torch.float32)
    assert exact.dtype == torch.float32
    assert torch.equal(bias_grad(x.half()), exact.half())


@pytest.mark.parametrize("shape", [(1, 1, 3), (2, 5, 40), (2, 300, 17)])
def test_partial_sums_are_added_and_rounded(shape: tuple[int, ...]) -> None:
    sums = torch.randn(*shape, generator=torch.Generator().manual_seed(1))
    exact = reduce_partial_sums(sums, torch.float32)
    torch.testing.assert_close(exact, sums.sum(dim=1), atol=1e-4, rtol=1e-4)
    assert torch.equal(reduce_partial_sums(sums, torch.float16), exact.half())


@pytest.mark.parametrize("has_bias", [(True, True, True), (False, False, False), (True, False, True)])
def test_linears_equal_separate_linear_layers(has_bias: tuple[bool, ...]) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 5, 6).requires_grad_()
    weights = [torch.randn(size, 6).requires_grad_() for size in (6, 3, 2)]
    biases = [torch.randn(len(w)).requires_grad_() if has else None for w, has in zip(weights, has_bias, strict=True)]
    pairs = list(zip(weights, biases, strict=True))
    leaves = [x, *weights, *(bias for bias in biases if bias is not None)]
    factors = [torch.randn(2, 5, len(weight)) for weight in weights]
    actual, expected = (
        (*outputs, *torch.autograd.grad(sum((y * f).sum() for y, f in zip(outputs, factors, strict=True)), leaves))
        for outputs in (linears(x, *pairs), [functional.linear(x, *pair) for pair in pairs])
    )
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_linear_equals_pytorch() -> None:
    torch.manual_seed(0)
    x, weight, bias = (torch.randn(*shape).requires_grad_() for shape in ((2, 5, 6), (4, 6), (4,)))
    factor = torch.randn(2, 5, 4)
    actual, expected = (
        (y, *torch.autograd.grad((y * factor).sum(), (x, weight, bias)))
        for y in (linear(x, weight, bias), functional.linear(x, weight, bias))
    )
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("adjacent", [True, False])
def test_concat_does_not_copy_adjacent_tensors(adjacent: bool) -> None:
    torch.manual_seed(0)
    concatenated = torch.randn(9, 4)
    tensors = [part.detach() if adjacent else part.clone() for part in concatenated.split([2, 4, 3])]
    for tensor in tensors:
        tensor.requires_grad_()
    out = concat(*tensors)
    assert torch.equal(out, concatenated)
    assert (out.data_ptr() == tensors[0].data_ptr()) is adjacent
    factor = torch.randn(9, 4)
    (out * factor).sum().backward()
    assert [tensor.grad is not None for tensor in tensors] == [True] * 3
    assert torch.equal(torch.cat([tensor.grad for tensor in tensors if tensor.grad is not None]), factor)
    assert torch.equal(concat(tensors[1], tensors[0]), torch.cat((tensors[1], tensors[0])))  # in another order
