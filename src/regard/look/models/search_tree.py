"""The recorded search of a model as the contract's messages: generated tokens, and the nodes of the search tree."""

from collections.abc import Sequence

from torch import Tensor

from regard.decode.strategy import upcast
from regard.look.analysis.search_recorder import SearchRecorder
from regard.look.models.detokenizer import Detokenizer, count_words, token_after
from regard.look.schema import Alternative, BeamNode, GeneratedToken, NextToken, Token

ALTERNATIVES = 8
"""Alternatives that are kept of each generated token."""
NEXT_TOKENS = 20
"""Next tokens that are shown of a node."""


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
