"""Positions: 001's requirements, its examples, and the sinusoids of 001, 002 and 004."""

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from regard import UserError
from regard.attention import Binary, Index, Learned, Normalized, Rotary, Sinusoidal, SinusoidalConfig, apply_rotary
from regard.look.positions.requirements import LONG, SCHEMES, WIDTH, requirements

# Dark horses are faster than white horses: 001 "Naive Examples" and "Discrete Example"


def normalized(words: int) -> list[float]:
    return Normalized(1).encode(torch.arange(words)).flatten().tolist()


@pytest.mark.parametrize(("words", "step"), [(7, 0.143), (8, 0.125)])
def test_normalized_neighbors_are_0_143_apart_in_7_words_and_0_125_in_8(words: int, step: float) -> None:
    """001 "Naive Examples", Pos 2: i/7 in one sentence, i/8 in the other."""
    steps = [later - earlier for earlier, later in pairwise(normalized(words))]
    assert steps == pytest.approx([step] * (words - 1), abs=5e-4)


def truncated(numbers: list[float]) -> list[float]:
    """Truncate to two digits, as the slide does."""
    return [math.floor(100 * number) / 100 for number in numbers]


def test_normalized_in_8_words_are_the_printed_numbers() -> None:
    """001 "Naive Examples", Pos 2 of the test sample."""
    assert truncated(normalized(8)) == [0.12, 0.25, 0.37, 0.5, 0.62, 0.75, 0.87, 1.0]


def test_normalized_in_7_words_are_not_what_is_printed_for_words_4_to_6() -> None:
    """001 "Naive Examples", Pos 2 of the training sample: the slide continues in steps of 0.14, up to 0.56 for 4/7."""
    printed = [0.14, 0.28, 0.42, 0.56, 0.70, 0.84, 1.0]
    differ = [
        word for word, pair in enumerate(zip(truncated(normalized(7)), printed, strict=True), 1) if len(set(pair)) > 1
    ]
    assert differ == [4, 5, 6]


def test_index_counts_words_from_1() -> None:
    """001 "Naive Examples", Pos 1."""
    assert Index(1).encode(torch.arange(8)).flatten().tolist() == [1, 2, 3, 4, 5, 6, 7, 8]


def test_low_3_bits_repeat_at_8() -> None:
    """001 "Discrete Example": 0 and 8 are 000, …, 7 and 15 are 111."""
    bits = Binary(3).encode(torch.arange(16))
    assert torch.equal(bits[:8], bits[8:])


def test_binary_is_written_highest_bit_first() -> None:
    """001 "Discrete Example": 1 is 001, 4 is 100, 6 is 110."""
    bits = Binary(3).encode(torch.tensor([1, 4, 6])).int()
    assert ["".join(map(str, row)) for row in bits.tolist()] == ["001", "100", "110"]


# The requirements: 001 "Position Encoding Requirement"


def test_sinusoids_are_bounded_by_1() -> None:
    """001 "Continuous Encoding"."""
    assert Sinusoidal(WIDTH).encode(torch.arange(LONG)).abs().max() <= 1


def test_sinusoids_are_unique() -> None:
    """001 "Continuous Encoding": no two of 1,024 positions have nearly the same encoding."""
    assert torch.pdist(Sinusoidal(WIDTH).encode(torch.arange(LONG))).min() > 0.1


def test_only_sinusoidal_and_rotary_positions_meet_all_five_requirements() -> None:
    """001 "Position Encoding Requirement": computed from the encodings; the full table is in docs/lectures.md."""
    assert {name for name, scheme in SCHEMES.items() if all(requirements(scheme).values())} == {"sinusoidal", "rotary"}


def test_learned_positions_end_with_their_table() -> None:
    """002 "Fixing the sequence order problem": there is no vector for the next position, and the error says so."""
    with pytest.raises(UserError, match="learned positions for 7 tokens, but 8 are needed"):
        Learned(WIDTH, max_length=7).encode(torch.arange(8))


# The sinusoids themselves: 001 "Positional Encoding", 002 "Position embeddings without learning", 004 eq. 8 and 9


def sinusoids(width: int, words: int, first_pair: int) -> Tensor:
    """sin(p / 10000^(2i/d)), cos(p / 10000^(2i/d)), the pairs i counted from `first_pair`.  # (words, width)"""
    rows = []
    for place in range(words):
        angles = [place / 10_000 ** (2 * pair / width) for pair in range(first_pair, first_pair + width // 2)]
        rows.append([wave(angle) for angle in angles for wave in (math.sin, math.cos)])
    return torch.tensor(rows)


def test_sinusoids_are_equations_8_and_9() -> None:
    """004 eq. 8 and 9: pairs counted from 0."""
    assert torch.allclose(Sinusoidal(16).encode(torch.arange(50)), sinusoids(16, 50, first_pair=0), atol=1e-5)


def test_pairs_numbered_from_1_give_another_code() -> None:
    """002 "Position embeddings without learning": at the second word the encodings differ by more than 0.5."""
    ours, theirs = Sinusoidal(16).encode(torch.arange(2)), sinusoids(16, 2, first_pair=1)
    assert (ours[1] - theirs[1]).abs().max() > 0.5


def test_pairs_numbered_from_1_are_ours_moved_by_a_pair() -> None:
    """002 "Position embeddings without learning": the highest frequency is missing, a lower one is added."""
    ours, theirs = Sinusoidal(16).encode(torch.arange(50)), sinusoids(16, 50, first_pair=1)
    assert torch.allclose(theirs[:, :-2], ours[:, 2:], atol=1e-5)


@pytest.mark.parametrize("distance", [1, 2, 7, 50])
def test_dot_product_of_two_sinusoids_depends_on_their_distance_alone(distance: int) -> None:
    """001 "Position Encoding Requirement": PE(p)·PE(p + k) is the same for every p."""
    code = Sinusoidal(64).encode(torch.arange(200 + distance))
    products = (code[:200] * code[distance:]).sum(dim=-1)
    assert torch.allclose(products, products[0].expand(200), atol=1e-3)


def test_dot_product_of_two_learned_codes_does_not_depend_on_their_distance_alone() -> None:
    """001 "Position Encoding Requirement": a counterexample, before any training."""
    torch.manual_seed(0)
    code = torch.nn.functional.normalize(Learned(64, max_length=201).encode(torch.arange(201)), dim=-1)
    products = (code[:200] * code[1:]).sum(dim=-1)
    assert products.std() > 0.1


@pytest.mark.parametrize("distance", [1, 7, 50])
def test_a_fixed_linear_map_takes_the_code_of_p_to_that_of_p_plus_k(distance: int) -> None:
    """001 "Position Encoding Requirement": each pair is rotated by k times its frequency, for every p."""
    width = 64
    turn = torch.zeros(width, width)
    for feature in range(0, width, 2):
        angle = distance * 10_000 ** (-feature / width)
        sine, cosine = math.sin(angle), math.cos(angle)
        turn[feature : feature + 2, feature : feature + 2] = torch.tensor([[cosine, sine], [-sine, cosine]])
    code = Sinusoidal(width).encode(torch.arange(200 + distance))
    assert torch.allclose(code[:200] @ turn.T, code[distance:], atol=1e-4)


@pytest.mark.parametrize("distance", [1, 7, 50])
def test_rotary_scores_depend_on_the_distance_alone(distance: int) -> None:
    """004 "Positional Encoding": "modern-day references: Rotary Positional Encodings"."""
    torch.manual_seed(0)
    query, key = torch.randn(2, 1, 1, 1, 64).expand(2, 1, 1, 200, 64)
    rotary, place = Rotary(64), torch.arange(200)
    turned_query = apply_rotary(query, rotary.rotation(place, 200))
    turned_key = apply_rotary(key, rotary.rotation(place + distance, 200 + distance))
    scores = (turned_query * turned_key).sum(dim=-1).flatten()
    assert torch.allclose(scores, scores[0].expand(200), atol=1e-3)


# Addition or concatenation: 002 "Fixing the sequence order problem"


def test_positions_are_added_by_default() -> None:
    """002 "Fixing the sequence order problem": x̃ = x + p, "adding is more common"."""
    x, place = torch.randn(1, 5, 16), torch.arange(5)
    assert torch.equal(SinusoidalConfig().build(16).combine(x, place), x + Sinusoidal(16).encode(place))


def test_positions_can_be_set_beside_the_word() -> None:
    """002 "Fixing the sequence order problem": "either concatenate x and p or just add them"."""
    scheme = SinusoidalConfig(combine="concatenate", features=4)
    x, place = torch.randn(1, 5, scheme.token_width(16)), torch.arange(5)
    expected = torch.cat((x, Sinusoidal(4).encode(place)[None]), dim=-1)
    assert torch.equal(scheme.build(16).combine(x, place), expected)
