"""The recorded search of a model as the contract's messages: generated tokens, search tree and ranked outputs."""

from collections.abc import Callable, Sequence

from torch import Tensor

from regard.decode import Hypothesis, LengthPenalty, Request
from regard.decode.strategy import upcast
from regard.look import schema
from regard.look.analysis.search_recorder import SearchRecorder
from regard.look.models.detokenizer import Detokenizer, count_words, token_after
from regard.look.schema import Alternative, BeamNode, GeneratedToken, NextToken, Token

ALTERNATIVES = 8
"""Alternatives that are kept of each generated token."""
NEXT_TOKENS = 20
"""Next tokens that are shown of a node."""
MAX_HYPOTHESES = 100
"""Hypotheses that are listed; a large beam displaces many more."""


def generated_tokens(
    detokenizer: Detokenizer, logits: Tensor, target: Sequence[Token], first: int
) -> list[GeneratedToken]:
    """The tokens of `target` from position `first` on, with their probabilities and alternatives.

    logits: # (tokens, vocab_size), for the token after each position
    """
    probabilities = upcast(logits[first - 1 : len(target) - 1]).double().softmax(dim=-1)
    best = probabilities.topk(min(ALTERNATIVES, probabilities.shape[1]))
    generated = []
    for step, (values, ids) in enumerate(zip(best.values.tolist(), best.indices.tolist(), strict=True)):
        token, previous = target[first + step], target[first + step - 1]
        words = count_words(target[: first + step])
        alternatives = [
            Alternative(token=token_after(detokenizer, token_id, previous.id, words), probability=probability)
            for token_id, probability in zip(ids, values, strict=True)
        ]
        probability = float(probabilities[step, token.id])
        generated.append(GeneratedToken(token=token, probability=probability, alternatives=alternatives))
    return generated


def next_tokens(detokenizer: Detokenizer, logits: Tensor, prefix: Sequence[Token]) -> list[NextToken]:
    """The likeliest tokens after a prefix.  logits: # (vocab_size,)"""
    scores = upcast(logits)
    best = scores.topk(min(NEXT_TOKENS, len(scores)))
    probabilities = scores.double().softmax(dim=-1)[best.indices]
    words, last = count_words(prefix), prefix[-1].id
    return [
        NextToken(token=token_after(detokenizer, token_id, last, words), logit=logit, probability=probability)
        for token_id, logit, probability in zip(
            best.indices.tolist(), best.values.tolist(), probabilities.tolist(), strict=True
        )
    ]


def beam_nodes(
    detokenizer: Detokenizer, recorder: SearchRecorder, output: Sequence[int], prefix: Sequence[Token]
) -> list[BeamNode]:
    """All nodes of a search after `prefix`; those of `output` are marked."""
    output_nodes = {node.id for node in recorder.path_of(output)}
    words: dict[int, int] = {-1: count_words(prefix)}
    nodes = []
    for node in recorder.nodes:
        parent, previous = (-1, prefix[-1].id) if node.parent is None else (node.parent.id, node.parent.token)
        token = token_after(detokenizer, node.token, previous, words[parent])
        words[node.id] = max(words[parent], token.word + 1)
        nodes.append(
            BeamNode(
                id=node.id,
                parent=parent,
                step=node.step,
                token=token,
                log_probability=node.log_probability,
                total_log_probability=node.total,
                state=node.state,
                in_output=node.id in output_nodes,
                cache_row=node.cache_row,
                cache_copied=node.cache_copied,
                attention_index=node.attention_index,
            )
        )
    return nodes


def length_penalty(search: Request) -> LengthPenalty | None:
    """The penalty in a search's scores; None for one that follows a single output and ranks nothing."""
    config = search.config
    has_beam = not config.sample and (config.beam_size > 1 or bool(search.constraints.required))
    return config.length_penalty if has_beam else None


def ranked_hypotheses(
    recorder: SearchRecorder, found: Sequence[Hypothesis], search: Request, text: Callable[[Sequence[int]], str]
) -> list[schema.Hypothesis]:
    """The outputs that a search `found`, in its order and with its scores, then those that these displaced.

    text: the text of an output
    """
    penalty = length_penalty(search) or LengthPenalty(kind="none")
    hypotheses = []
    for each in found:
        ids = [*each.tokens, *([recorder.eos] if each.ended else [])]
        path, divisor = recorder.path_of(ids), penalty.at(len(ids))
        hypotheses.append(
            schema.Hypothesis(
                node=path[-1].id if path and len(path) == len(ids) else -1,
                text=text(each.tokens),
                length=len(ids),
                ended=each.ended,
                kept=True,
                log_probability=each.logprob,
                length_penalty=divisor,
                coverage=each.score - each.logprob / divisor if search.config.coverage_penalty else None,
                score=each.score,
            )
        )
    listed = {each.node for each in hypotheses}
    displaced = [
        schema.Hypothesis(
            node=node.id,
            text=text(node.prefix()[:-1]),
            length=node.step,
            ended=True,
            kept=False,
            log_probability=node.total,
            length_penalty=penalty.at(node.step),
            score=node.total / penalty.at(node.step),
        )
        for node in recorder.nodes
        if node.state == "finished" and node.id not in listed
    ]
    displaced.sort(key=lambda each: -each.score)
    return (hypotheses + displaced)[: max(len(hypotheses), MAX_HYPOTHESES)]
