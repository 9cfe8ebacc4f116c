"""Products by oneDNN, which comes with PyTorch.

PyTorch asks another library for products of float32 matrices. On processors that are not its maker's that one takes
about a tenth longer, and on several busy cores more than that. For gradients of weights it is as good.
"""

from typing import cast

import torch
from torch import Tensor
from torch.nn import functional

_THERE = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def plain_product(x: Tensor, weight: Tensor, bias: Tensor | None = None, bend: str = "none") -> Tensor:
    """x · weightᵀ + bias without a gradient, in float32; `bend` may be "relu".

    x: # (rows, width); weight: # (size, width); either may be turned
    """
    if _THERE and x.numel():
        return cast(Tensor, torch.ops.mkldnn._linear_pointwise(x, weight, bias, bend, [], ""))
    made = functional.linear(x, weight, bias)
    return made.relu_() if bend == "relu" else made
