"""Why this token and not that one: what the choice between two tokens at a step of the decoder depends on.

The margin is log p(token) − log p(contrast), which is also the difference of their logits. Three questions are asked
about it, each answered by numbers that can be checked:

- How does it change if a head or a feed-forward network is switched off (its output replaced by zeros)? This is exact:
  the pass is computed again for each.
- How does it change if a word of the source or of the target so far is occluded?
- What do the parts of the decoder's last hidden state contribute to it directly? Their sum is the margin.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.attention.multi_head import Attention
from regard.errors import UserError
from regard.look.analysis.attention_maps import attention_modules
from regard.look.analysis.attribution.direct import blocks_of, direct_parts
from regard.look.analysis.attribution.occlusion import can_occlude, occlude
from regard.look.analysis.head_ablation import ablate_heads
from regard.look.models.autoregressive import TracedAutoregressiveModel
from regard.look.schema import (
    AblatedHead,
    Contrast,
    ContrastPart,
    ContrastRequest,
    FeedForwardEffect,
    HeadEffect,
    RunRequest,
    Token,
    WordEffect,
)
from regard.look.trace import Trace
from regard.model import Seq2SeqLM
from regard.model.stack import Stack


class Choice(NamedTuple):
    """The two tokens that are compared, and what the decoder has read before them."""

    request: RunRequest
    read: tuple[int, ...]
    """The target up to the step, bos or prompt included."""
    token: int
    contrast: tuple[int, ...]
    """The tokens that could stand there instead; the first is compared."""


def explain_choice(
    traced_model: TracedAutoregressiveModel, trace: Trace, request: ContrastRequest
) -> Iterator[tuple[int, Contrast]]:
    """Yield the number of passes and the results so far. Between two of them the model is as it always is.

    If heads were ablated in the trace, they are in all of these passes.
    """
    choice = find_choice(traced_model, trace, request)
    logits_of = _pass(traced_model, choice)
    logprobs = logits_of()[-1].double().log_softmax(dim=-1)
    contrast = choice.contrast[0]
    margin = float(logprobs[choice.token] - logprobs[contrast])
    detokenizer = traced_model.target_detokenizer
    tokens = detokenizer.tokens([*choice.read, choice.token])
    contrast_tokens = detokenizer.tokens([*choice.read, *choice.contrast])[len(choice.read) :]
    result = Contrast(
        position=len(choice.read) - 1,
        read=tokens[-2],
        token=tokens[-1],
        contrast=contrast_tokens[0],
        contrast_tokens=contrast_tokens,
        probability=float(logprobs[choice.token].exp()),
        contrast_probability=float(logprobs[contrast].exp()),
        margin=margin,
        parts=_direct(traced_model, choice, logits_of),
        heads=[],
        feed_forwards=[],
        words=[],
    )
    source = [] if not isinstance(traced_model.model, Seq2SeqLM) else trace.header.source
    passes = list(_passes(traced_model.model, source, tokens[:-1]))
    yield len(passes), _copy(result)
    for condition, record in passes:
        with condition():
            logits = logits_of()[-1].double()
        record(result, float(logits[choice.token] - logits[contrast]) - margin)
        yield len(passes), _copy(result)


def find_choice(traced_model: TracedAutoregressiveModel, trace: Trace, request: ContrastRequest) -> Choice:
    """The tokens that a request means. A contrast that begins like the output is compared where they first differ."""
    target = [token.id for token in trace.header.target]
    first = traced_model.prefix_length(trace.header.request)
    if not first <= request.position < len(target):
        raise UserError(
            f"position: found {request.position}; the tokens that were generated are {first} to {len(target) - 1}."
        )
    position = request.position
    if isinstance(request.contrast, int):
        contrast = [request.contrast]
        if not 0 <= request.contrast < traced_model.model.config.vocab_size:
            raise UserError(f"contrast: there is no token {request.contrast}.")
    elif not request.contrast.strip():
        raise UserError("contrast: there is no text; give a word.")
    else:
        contrast = traced_model.target_detokenizer.encode_after(target[:position], request.contrast)
    for offset, token in enumerate(contrast):
        if position + offset >= len(target):
            break
        if token != target[position + offset]:
            read = tuple(target[: position + offset])
            return Choice(trace.header.request, read, target[position + offset], tuple(contrast[offset:]))
    raise UserError("The contrast is what the model wrote; choose another word or token.")


def _pass(traced_model: TracedAutoregressiveModel, choice: Choice) -> Callable[[], Tensor]:
    """The pass up to the step, in the model as it is when it is called.  # (tokens, vocab_size)"""
    ablation = traced_model.ablation(choice.request)

    def logits() -> Tensor:
        with ablation():
            return traced_model.logits(choice.request, choice.read)

    return logits


def _copy(result: Contrast) -> Contrast:
    """The results so far, which later ones are not added to."""
    lists = {name: list(getattr(result, name)) for name in ("heads", "feed_forwards", "words")}
    return result.model_copy(update=lists)


def _direct(traced_model: TracedAutoregressiveModel, choice: Choice, run: Callable[[], Tensor]) -> list[ContrastPart]:
    """The direct contributions to the margin; none if the model is no Transformer with residual connections."""
    model: Any = traced_model.model
    decoder = getattr(model, "decoder", None)
    try:
        parts = direct_parts(decoder, run, len(choice.read) - 1)
    except UserError:
        return []
    lm_head = model.embed_tokens if model.lm_head is None else model.lm_head
    weight: Tensor = lm_head.weight.detach().double().cpu()
    direction = weight[choice.token] - weight[choice.contrast[0]]
    found = [
        ContrastPart(kind=part.kind, layer=part.layer, head=part.head, value=float(part.vector @ direction))
        for part in parts
    ]
    if model.lm_head_bias is not None:
        bias = model.lm_head_bias.detach().double().cpu()
        found.append(
            ContrastPart(kind="bias", layer=None, head=None, value=float(bias[choice.token] - bias[choice.contrast[0]]))
        )
    return found


Condition = Callable[[], AbstractContextManager[None]]
Record = Callable[[Contrast, float], None]


def _passes(model: nn.Module, source: Sequence[Token], target: Sequence[Token]) -> Iterator[tuple[Condition, Record]]:
    """Each pass: what is different in it, and where its change of the margin goes. Words come first: they are few."""
    for side, tokens in (("source", source), ("target", target)) if can_occlude(model) else ():
        for word in dict.fromkeys(token.word for token in tokens if token.word >= 0):
            positions = [index for index, token in enumerate(tokens) if token.word == word]
            yield _occlusion(model, side, positions)
    for attention_type, layers in attention_modules(model).items():
        for layer, attention in enumerate(layers):
            for head in range(attention.heads if isinstance(attention, Attention) else 0):
                yield _ablation(
                    model, AblatedHead(attention_type=attention_type, layer=layer, head=head, ablation="zero")
                )
    for name in ("encoder", "decoder"):
        stack = getattr(model, name, None)
        for layer, block in enumerate(blocks_of(stack) if isinstance(stack, Stack) else []):
            if "feed_forward" in block.names:
                yield _without_feed_forward(name, layer, block.get_submodule("feed_forward"))


def _occlusion(model: nn.Module, side: Any, positions: list[int]) -> tuple[Condition, Record]:
    def record(result: Contrast, change: float) -> None:
        result.words.append(WordEffect(side=side, positions=positions, change=change))

    return lambda: occlude(model, side, positions), record


def _ablation(model: nn.Module, head: AblatedHead) -> tuple[Condition, Record]:
    def record(result: Contrast, change: float) -> None:
        result.heads.append(
            HeadEffect(attention_type=head.attention_type, layer=head.layer, head=head.head, change=change)
        )

    return lambda: ablate_heads(model, [head]), record


def _without_feed_forward(stack: Any, layer: int, module: nn.Module) -> tuple[Condition, Record]:
    @contextmanager
    def condition() -> Iterator[None]:
        handle = module.register_forward_hook(lambda module, inputs, output: torch.zeros_like(output))
        try:
            yield
        finally:
            handle.remove()

    def record(result: Contrast, change: float) -> None:
        result.feed_forwards.append(FeedForwardEffect(stack=stack, layer=layer, change=change))

    return condition, record
