"""Head ablation: run a model while some of its heads are replaced by a constant.

The outputs of an attention's heads are concatenated and enter the output projection. An ablated head contributes zeros
there (zero ablation), or the same vector at every token: its mean over the tokens of a text (mean ablation). The model
is not modified: a hook replaces the input of the output projection. This works on the reference model only, not on the
fused decoders built from it.

The mean is computed once, with no head ablated, and is constant from then on. So a token is treated alike in decoding
step by step and in a pass over the complete text.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from regard.attention.multi_head import Attention
from regard.look.analysis.attention_maps import AttentionKey, attention_modules, find_attention
from regard.look.schema import AblatedHead

HeadMeans = dict[AttentionKey, Tensor]
"""The mean output of each attention's heads, concatenated.  # (heads · value_head_dim,)"""


@contextmanager
def ablate_heads(model: nn.Module, heads: Sequence[AblatedHead], means: HeadMeans | None = None) -> Iterator[None]:
    """Ablate heads within the block. Mean ablation needs the `means` that `mean_outputs` collects."""
    by_module: dict[AttentionKey, list[AblatedHead]] = {}
    for head in heads:
        find_attention(model, head.attention_type, head.layer, head.head)
        by_module.setdefault((head.attention_type, head.layer), []).append(head)
    with ExitStack() as stack:
        for key, ablated in by_module.items():
            attention = find_attention(model, *key)
            mean = None if means is None else means.get(key)
            handle = attention.o_proj.register_forward_pre_hook(_ablation_hook(attention, ablated, mean))
            stack.callback(handle.remove)
        yield


@contextmanager
def mean_outputs(model: nn.Module) -> Iterator[HeadMeans]:
    """Collect the mean head outputs of all passes within the block, which must not be padded; filled at its end."""
    sums: dict[AttentionKey, tuple[Tensor, int]] = {}
    means: HeadMeans = {}

    def accumulate(key: AttentionKey) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        def hook(module: nn.Module, inputs: tuple[Any, ...]) -> None:
            outputs: Tensor = inputs[0].detach().flatten(0, 1).cpu().double()  # not every device has float64
            total, count = sums.get(key, (outputs.new_zeros(outputs.shape[1]), 0))
            sums[key] = (total + outputs.sum(dim=0), count + outputs.shape[0])

        return hook

    with ExitStack() as stack:
        for attention_type, layers in attention_modules(model).items():
            for layer in range(len(layers)):
                attention = find_attention(model, attention_type, layer)
                handle = attention.o_proj.register_forward_pre_hook(accumulate((attention_type, layer)))
                stack.callback(handle.remove)
        yield means
    means.update({key: total / count for key, (total, count) in sums.items()})


def needs_means(heads: Sequence[AblatedHead]) -> bool:
    return any(head.ablation == "mean" for head in heads)


def all_heads(model: nn.Module) -> list[tuple[AttentionKey, int]]:
    """Every head of a model, in order of computation."""
    return [
        ((attention_type, layer), head)
        for attention_type, layers in attention_modules(model).items()
        for layer, attention in enumerate(layers)
        for head in range(attention.heads)
    ]


def _ablation_hook(
    attention: Attention, heads: Sequence[AblatedHead], mean: Tensor | None
) -> Callable[[nn.Module, tuple[Any, ...]], tuple[Tensor]]:
    head_dim = attention.sizes.value_head_dim

    def hook(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Tensor]:
        outputs: Tensor = inputs[0].clone()
        for head in heads:
            columns = slice(head.head * head_dim, (head.head + 1) * head_dim)
            if head.ablation == "zero":
                outputs[..., columns] = 0
            else:
                assert mean is not None, "mean ablation needs the means of the heads"
                outputs[..., columns] = mean[columns].to(outputs)
        return (outputs,)

    return hook
