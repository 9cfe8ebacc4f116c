"""Lines in, lines out: in their order, whatever their neighbours."""

import pytest

from regard import UserError
from regard.data.pairs import Pair
from regard.data.tokenizer import TextTokenizer
from regard.decode import DecodeConfig
from regard.model import EncoderDecoder, EncoderDecoderConfig
from regard.task.shortlist import learn_shortlist
from regard.task.translate import translate_lines
from tests.task.small import SEARCH, pairs, random_model, small_tokenizer

LINES = ["red", "old cat sea", "", "sun", "big dog man sun sea red old", "   ", "cat", "man sea"]
BEAMS = SEARCH
GREEDY = DecodeConfig.read(SEARCH.plain() | {"beams": 1})


@pytest.fixture(scope="module")
def tokenizer() -> TextTokenizer:
    return small_tokenizer()


@pytest.fixture(scope="module")
def model(tokenizer: TextTokenizer) -> EncoderDecoder:
    """In float64, where the rounding of other batches changes no decision."""
    return random_model(tokenizer.vocabulary).double()


def tokens(
    model: EncoderDecoder, tokenizer: TextTokenizer, lines: list[str], decode: DecodeConfig, batch: int | None = None
) -> list[tuple[int, ...]]:
    found = translate_lines(model, tokenizer, tokenizer, lines, decode, batch_tokens=batch)
    return [best.tokens for best, *_ in found]


@pytest.mark.parametrize("decode", [GREEDY, BEAMS], ids=["greedy", "beams"])
@pytest.mark.parametrize("batch", [1, 20, 10_000])
def test_a_line_among_others_gets_the_result_it_gets_alone(
    model: EncoderDecoder, tokenizer: TextTokenizer, decode: DecodeConfig, batch: int
) -> None:
    """So results come in the order of the lines, and the size of batches changes none."""
    alone = [tokens(model, tokenizer, [line], decode)[0] for line in LINES]
    assert len(set(alone)) > len(LINES) // 2
    assert tokens(model, tokenizer, LINES, decode, batch) == alone


@pytest.mark.parametrize("beams", [1, 3])
def test_how_long_an_output_may_be_follows_from_its_own_line(
    model: EncoderDecoder, tokenizer: TextTokenizer, beams: int
) -> None:
    """And not from the longest line that happens to be searched beside it."""
    decode = DecodeConfig(beams=beams, longest_factor=1.0, longest_extra=1)
    alone = [tokens(model, tokenizer, [line], decode)[0] for line in LINES]
    assert tokens(model, tokenizer, LINES, decode) == alone


def test_no_output_is_longer_than_its_search_allows(model: EncoderDecoder, tokenizer: TextTokenizer) -> None:
    """The rest of a line that does not come to its end is cut, and said to be."""
    found = translate_lines(model, tokenizer, tokenizer, ["red", "sun"], GREEDY)
    assert [(len(best.tokens), best.ended) for best, *_ in found] == [(12, False)] * 2


def test_a_line_without_words_stays_empty(model: EncoderDecoder, tokenizer: TextTokenizer) -> None:
    found = tokens(model, tokenizer, LINES, GREEDY)
    assert [number for number, row in enumerate(found) if not row] == [2, 5]


def test_no_lines_give_no_results(model: EncoderDecoder, tokenizer: TextTokenizer) -> None:
    assert translate_lines(model, tokenizer, tokenizer, [], GREEDY) == []


def test_candidates_are_ordered_by_score(model: EncoderDecoder, tokenizer: TextTokenizer) -> None:
    for found in translate_lines(model, tokenizer, tokenizer, ["red", "old cat sea"], BEAMS):
        scores = [one.score for one in found]
        assert len(scores) == 3
        assert scores == sorted(scores, reverse=True)


def test_candidates_differ(model: EncoderDecoder, tokenizer: TextTokenizer) -> None:
    (found,) = translate_lines(model, tokenizer, tokenizer, ["old cat sea"], BEAMS)
    assert len({one.tokens for one in found}) == 3


def test_greedy_search_gives_one_candidate(model: EncoderDecoder, tokenizer: TextTokenizer) -> None:
    assert [len(found) for found in translate_lines(model, tokenizer, tokenizer, LINES, GREEDY)] == [1] * len(LINES)


def test_the_text_of_a_candidate_is_that_of_its_tokens(model: EncoderDecoder, tokenizer: TextTokenizer) -> None:
    (found,) = translate_lines(model, tokenizer, tokenizer, ["old cat sea"], BEAMS)
    assert [one.text for one in found] == [tokenizer.decode(one.tokens) for one in found]


@pytest.mark.parametrize("decode", [GREEDY, BEAMS], ids=["greedy", "beams"])
def test_lines_are_searched_among_the_tokens_of_a_shortlist(
    model: EncoderDecoder, tokenizer: TextTokenizer, decode: DecodeConfig
) -> None:
    given = [Pair(*pair) for pair in pairs(20)]
    shortlist = learn_shortlist(given, tokenizer, tokenizer, candidates=1, frequent=2)
    found = translate_lines(model, tokenizer, tokenizer, LINES, decode, shortlist=shortlist)
    known = set(shortlist.tokens(tokenizer.encode_batch(LINES)).tolist())
    assert len(known) < tokenizer.vocabulary
    assert all(set(one.tokens) <= known for each in found for one in each)
    assert [found[number][0].text for number in (2, 5)] == ["", ""]


def test_progress_counts_up_to_all_lines(model: EncoderDecoder, tokenizer: TextTokenizer) -> None:
    heard: list[int] = []
    translate_lines(model, tokenizer, tokenizer, LINES, GREEDY, batch_tokens=20, progress=heard.append)
    assert len(heard) > 1
    assert heard == sorted(set(heard))
    assert heard[-1] == len(LINES)


@pytest.mark.parametrize("missing", ["start", "end"])
def test_a_model_that_does_not_know_its_frame_cannot_be_searched(missing: str, model: EncoderDecoder) -> None:
    values = model.config.plain()
    values["tokens"][missing] = None
    config = EncoderDecoderConfig.read(values)
    with pytest.raises(UserError, match="does not say which ids are start and end"):
        config.build().begin([[5, 6]], 4)
