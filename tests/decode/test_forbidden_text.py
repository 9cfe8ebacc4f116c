"""No output contains a forbidden string, in whatever tokens, and everything else may be generated."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard import UserError
from regard.decode import Constraints, DecodeConfig, ForbiddenText, ForbiddenTextProcessor, make_strategy, search
from regard.decode.shortlist import ShortlistModel
from regard.decode.strategy import GeneratedTokens
from tests.decode.toy_models import EOS, TableModel, start_tokens

PIECES = (b"", b"a", b"b", b"ab", b"ba", b"abc", b"c", b"")
STRINGS = st.lists(st.text("abc", min_size=1, max_size=4).map(str.encode), min_size=1, max_size=3)


def text_of(tokens: tuple[int, ...]) -> bytes:
    return b"".join(PIECES[token] for token in tokens)


@settings(max_examples=60)
@given(strings=STRINGS, tokens=st.lists(st.integers(1, 6), max_size=6))
def test_exactly_the_tokens_that_complete_a_string_are_excluded(strings: list[bytes], tokens: list[int]) -> None:
    forbidden = ForbiddenText(tuple(strings), "toy", PIECES)
    while any(string in text_of(tuple(tokens)) for string in strings):
        tokens = tokens[:-1]
    generated = GeneratedTokens(torch.tensor([[*tokens, *[0] * 9]]), torch.tensor([len(tokens)]))
    excluded = ForbiddenTextProcessor(forbidden)(torch.zeros(1, 9), generated)[0].isinf().tolist()
    for token, piece in enumerate(PIECES):
        completed = any(string in text_of(tuple(tokens)) + piece for string in strings)
        assert excluded[token] == completed
        found = forbidden.first_in([*tokens, token])
        assert (found is not None) == completed
        if found is not None:
            assert any(string in text_of(found) for string in strings)
            assert not any(string in text_of(found[1:]) for string in strings)
    assert not excluded[8], "a token that only the model has"


@pytest.mark.parametrize("values", [{"beam_size": 1}, {"beam_size": 3}, {"beam_size": 1, "sample": True}], ids=str)
def test_outputs_do_not_contain_the_strings(values: dict) -> None:
    forbidden = ForbiddenText((b"abc", b"bb"), "toy", PIECES)
    model = TableModel(9, 7, 1)
    model.logits[..., 5] += 2  # abc

    def outputs(constraints: Constraints) -> list[bytes]:
        strategy = make_strategy(DecodeConfig(**values), [8] * 9, EOS, constraints=[constraints] * 9)
        return [text_of(one.tokens) for row in search(model, model.start(), start_tokens(9), strategy) for one in row]

    assert any(b"abc" in text or b"bb" in text for text in outputs(Constraints()))
    assert not any(b"abc" in text or b"bb" in text for text in outputs(Constraints(forbidden_text=forbidden)))


def test_shortlist_renumbers_the_tokens() -> None:
    tokens = torch.tensor([0, 2, 5, 6])
    constraints = Constraints(forbidden_text=ForbiddenText((b"bc",), "toy", PIECES))
    mapped = ShortlistModel(None, tokens).map_constraints(constraints).forbidden_text
    assert mapped is not None
    for row in itertools.product(range(4), repeat=3):
        expected = b"bc" in text_of(tuple(tokens[list(row)].tolist()))
        assert (mapped.first_in(row) is not None) == expected


def test_empty_string_is_refused() -> None:
    with pytest.raises(UserError, match="empty"):
        ForbiddenText((b"a", b""), "toy", PIECES)
