"""The language model's own promises: packed documents, padded rows, and what it refuses."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some

from regard import UserError
from regard.model import LanguageModel, LanguageModelConfig, count_parameters

from .small_models import EXACT, PATTERNS, VOCABULARY, build, ids, language_model, language_models, stack

often = settings(max_examples=max(100, settings().max_examples))  # an example takes about 10 ms
lengths_of_documents = some.lists(some.integers(1, 5), min_size=1, max_size=4)


@often
@given(config=language_models(), lengths=lengths_of_documents, padding=some.integers(0, 3), seed=some.integers(0, 999))
def test_packed_documents_equal_separate_rows(config, lengths, padding, seed):
    """Whatever numbers the documents have, and whatever stands in the padding behind them (numbered below zero)."""
    model = build(config, seed=seed)
    names = torch.randperm(50, generator=torch.Generator().manual_seed(seed))[: len(lengths)]
    numbers = torch.cat((names.repeat_interleave(torch.tensor(lengths)), torch.full((padding,), -1)))[None]
    row = ids(1, sum(lengths) + padding, seed=seed)
    packed = model(row, documents=numbers)
    assert packed.isfinite().all()
    start = 0
    for length in lengths:
        alone = model(row[:, start : start + length])
        torch.testing.assert_close(packed[:, start : start + length], alone, **EXACT)
        start += length


@pytest.mark.parametrize("pattern", PATTERNS)
def test_packed_documents_equal_separate_rows_in_every_pattern(pattern):
    """Each has its own global tokens and its own windows, in the second row at other places than in the first."""
    model = build(language_model(decoder=stack(pattern=pattern)))
    documents = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 2, 2, 2, 2]])
    row = ids(2, 9)
    packed = model(row, documents=documents)
    for number, pieces in enumerate([[(0, 4), (4, 9)], [(0, 2), (2, 5), (5, 9)]]):
        for start, end in pieces:
            alone = model(row[number : number + 1, start:end])
            torch.testing.assert_close(packed[number : number + 1, start:end], alone, **EXACT)


def test_a_number_that_comes_again_later_in_a_row_is_another_document():
    model = build(language_model())
    row = ids(1, 6)
    again = model(row, documents=torch.tensor([[0, 0, 0, 1, 0, 0]]))
    apart = model(row, documents=torch.tensor([[0, 0, 0, 1, 2, 2]]))
    torch.testing.assert_close(again, apart, **EXACT)


def test_a_number_that_comes_again_shows_no_later_token():
    model = build(language_model())
    row, documents = ids(1, 6), torch.tensor([[0, 0, 0, 1, 0, 0]])
    changed = row.clone()
    changed[0, 4:] = (row[0, 4:] + 1) % VOCABULARY
    assert torch.equal(model(row, documents=documents)[:, :4], model(changed, documents=documents)[:, :4])


@often
@given(config=language_models(), lengths=some.lists(some.integers(1, 7), min_size=1, max_size=4), data=some.data())
def test_padding_changes_nothing_whatever_it_holds(config, lengths, data):
    model = build(config)
    rows = ids(len(lengths), max(lengths) + data.draw(some.integers(0, 2)), seed=data.draw(some.integers(0, 999)))
    padded = model(rows, lengths=torch.tensor(lengths))
    assert padded.isfinite().all()
    for row, length in enumerate(lengths):
        torch.testing.assert_close(padded[row, :length], model(rows[row : row + 1, :length])[0], **EXACT)


def test_packed_rows_may_be_padded_by_lengths_too():
    model = build(language_model())
    row, documents = ids(1, 7), torch.tensor([[0, 0, 0, 1, 1, 1, 1]])
    padded = model(row, documents=documents, lengths=torch.tensor([5]))
    torch.testing.assert_close(padded[:, :5], model(row[:, :5], documents=documents[:, :5]), **EXACT)


def test_a_config_builds_its_model():
    model = language_model().build()
    assert isinstance(model, LanguageModel)
    assert model.config == language_model()


def test_an_untied_model_has_one_more_matrix():
    tied, untied = (count_parameters(language_model(tie=tie).build()) for tie in (True, False))
    assert untied - tied == VOCABULARY * 16


@pytest.mark.parametrize(
    "lengths", [torch.tensor(3), torch.tensor([3]), torch.tensor([[3, 3]]), torch.tensor([3.0, 3.0])]
)
def test_lengths_of_another_shape_or_type_are_refused_with_what_was_found(lengths):
    with pytest.raises(UserError) as caught:
        build(language_model())(ids(2, 4), lengths=lengths)
    expected = "lengths must hold whole numbers in the shape (2,); "
    assert str(caught.value) == f"{expected}found {tuple(lengths.shape)} of {lengths.dtype}."


@pytest.mark.parametrize("documents", [torch.zeros(2).long(), torch.zeros(2, 3).long(), torch.zeros(2, 4)])
def test_documents_of_another_shape_or_type_are_refused_with_what_was_found(documents):
    with pytest.raises(UserError) as caught:
        build(language_model())(ids(2, 4), documents=documents)
    expected = "documents must hold whole numbers in the shape (2, 4); "
    assert str(caught.value) == f"{expected}found {tuple(documents.shape)} of {documents.dtype}."


def test_a_cache_for_no_rows_is_refused():
    with pytest.raises(UserError, match="at least one row and one position; found 0 and 4"):
        build(language_model()).start(0, 4)


def test_the_size_of_the_vocabulary_is_required():
    with pytest.raises(UserError, match=r"^vocabulary: this key is required; "):
        LanguageModelConfig.read({})


def test_settings_of_an_encoder_are_unknown_to_a_language_model():
    with pytest.raises(UserError, match=r"^memory: unknown key; "):
        language_model(memory="shared")


def test_another_kind_is_refused_with_the_one_there_is():
    with pytest.raises(UserError, match=r"^kind: found 'encoder-decoder'; expected 'language-model'\.$"):
        language_model(kind="encoder-decoder")
