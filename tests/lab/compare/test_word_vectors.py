"""Word vectors in comparisons: counted ones put interchangeable words beside each other, and rungs start from them."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.errors import UserError
from regard.interop.word_vectors import read_word_vectors, write_word_vectors
from regard.lab.compare.ladder import Ladder, read_ladder
from regard.lab.compare.plan import plan_runs, validate
from regard.lab.compare.word_vectors import ppmi_vectors
from tests.lab.tiny import LADDER, write_tiny

WIDE = "overrides = { model = { width = 32 } }"
GROUPS = (("cat", "dog", "cow"), ("red", "blue", "green"), ("one", "two", "three"), ("runs", "sleeps", "eats"))


def corpus(count: int = 600) -> list[str]:
    """Sentences such as "two red cows sleep": words of one group can replace each other."""
    generator = random.Random(1)
    order = (GROUPS[2], GROUPS[1], GROUPS[0], GROUPS[3])
    return [" ".join(generator.choice(group) for group in order) + " ." for _ in range(count)]


def ladder_with(folder: Path, settings: str, ladder: str = LADDER) -> Ladder:
    return read_ladder(write_tiny(folder, ladder.replace(WIDE, f"{WIDE}\n{settings}")))[0]


def test_interchangeable_words_are_next_to_each_other() -> None:
    words, vectors = ppmi_vectors(corpus(), 4)
    ids = {word: number for number, word in enumerate(words)}
    unit = vectors / vectors.norm(dim=1, keepdim=True)
    for group in GROUPS:
        for word in group:
            nearest = (unit @ unit[ids[word]]).topk(3).indices.tolist()
            assert {words[number] for number in nearest} == set(group)


def test_counted_vectors_have_length_1_and_are_the_same_each_time() -> None:
    state = torch.random.get_rng_state()
    words, vectors = ppmi_vectors(corpus(), 6)
    again = ppmi_vectors(corpus(), 6)
    assert words == again[0]
    assert torch.equal(vectors, again[1])
    assert torch.equal(state, torch.random.get_rng_state())
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(len(words)))


def test_all_dimensions_together_factorize_the_positive_information() -> None:
    """U √Σ has the inner products (M Mᵀ)^½, whichever signs the singular vectors have."""
    lines = ["a b c d", "b c a", "d d a b", "c a"]
    words, vectors = ppmi_vectors(lines, 4)
    counts = torch.zeros(4, 4, dtype=torch.float64)
    for line in lines:
        ids = [words.index(word) for word in line.split()]
        for place, one in enumerate(ids):
            for other in ids[max(0, place - 2) : place] + ids[place + 1 : place + 3]:
                counts[one, other] += 1
    information = (counts * counts.sum() / torch.outer(counts.sum(1), counts.sum(0))).log().clamp(min=0)
    u, s, _ = torch.linalg.svd(information)
    expected = torch.nn.functional.normalize(u * s.sqrt(), dim=1).float()
    torch.testing.assert_close(vectors @ vectors.T, expected @ expected.T, atol=1e-4, rtol=1e-4)


def test_more_dimensions_than_words_are_zero() -> None:
    words, vectors = ppmi_vectors(["a b c"], 5)
    assert vectors.shape == (3, 5)
    assert not vectors[:, len(words) :].any()


def test_a_rung_starts_from_counted_vectors(tmp_path: Path) -> None:
    ladder = ladder_with(tmp_path, "word_vectors = {}", LADDER.replace("sizes = [1.0]", "sizes = [1.0, 0.5]"))
    small, wide, _, part = plan_runs(ladder, [], tmp_path / "out")
    recipe: Any = wide.recipe
    assert small.recipe.plain()["word_vectors"] is None
    assert recipe.word_vectors.tables().keys() == {"target"}  # one vocabulary serves both sides
    assert recipe.word_vectors.target.path == str(tmp_path / "out" / "vectors-full-32.txt")
    vectors, width = read_word_vectors(recipe.word_vectors.target.path)
    assert {"one", "ONE", "house", "HOUSE"} <= vectors.keys()
    assert width == 32
    assert part.recipe.plain()["word_vectors"]["target"]["path"] == str(tmp_path / "out" / "vectors-0.5-32.txt")


def test_vectors_are_counted_in_the_named_text(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("\n".join(corpus(20)), encoding="utf-8")
    ladder = ladder_with(tmp_path, 'word_vectors = { text = ["text.txt"], freeze = true }')
    recipe: Any = plan_runs(ladder, [], tmp_path / "out")[1].recipe
    assert recipe.word_vectors.target.freeze
    assert "cat" in read_word_vectors(recipe.word_vectors.target.path)[0]


def test_both_vocabularies_start_from_the_vectors(tmp_path: Path) -> None:
    ladder = ladder_with(tmp_path, "word_vectors = {}")
    recipe: Any = plan_runs(ladder, ["tokenizer.shared=false"], tmp_path / "out")[1].recipe
    assert recipe.word_vectors.tables().keys() == {"source", "target"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            'word_vectors = { path = "vectors.txt" }',
            "vectors of 5 numbers, but the model's embeddings have 32; set mod",
        ),
        ('word_vectors = { path = "other.txt" }', "other.txt: there is no such file"),
        ('word_vectors = { path = "vectors.txt", text = ["text.txt"] }', "rungs.1.word_vectors.text: vectors are coun"),
        ('word_vectors = {}\ninit_from = "small"', "rungs.1.word_vectors: the embeddings are those of 'small'"),
    ],
)
def test_error_names_the_key(tmp_path: Path, settings: str, message: str) -> None:
    write_word_vectors(tmp_path / "vectors.txt", ["one"], torch.ones(1, 5))
    with pytest.raises(UserError) as error:
        validate(ladder_with(tmp_path, settings))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_text_of_one_word_is_refused() -> None:
    with pytest.raises(UserError, match="the text has 1 distinct words; at least 2 are needed"):
        ppmi_vectors(["one one"], 4)
