"""The language model: packed documents, padded rows and invalid inputs."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some

from regard import UserError
from regard.model import LanguageModel, LanguageModelConfig, count_parameters
from tests.model.small_models import EXACT, PATTERNS, VOCAB_SIZE, build, ids, language_model, language_models, stack

many_examples = settings(max_examples=max(100, settings().max_examples))  # an example takes about 10 ms
document_lengths = some.lists(some.integers(1, 5), min_size=1, max_size=4)


@many_examples
@given(config=language_models(), lengths=document_lengths, padding=some.integers(0, 3), seed=some.integers(0, 999))
def test_packed_documents_equal_separate_rows(config, lengths, padding, seed):
    """For any document numbers, and any padding after them (a negative number)."""
    model = build(config, seed=seed)
    labels = torch.randperm(50, generator=torch.Generator().manual_seed(seed))[: len(lengths)]
    documents = torch.cat((labels.repeat_interleave(torch.tensor(lengths)), torch.full((padding,), -1)))[None]
    row = ids(1, sum(lengths) + padding, seed=seed)
    packed = model(row, documents=documents)
    assert packed.isfinite().all()
    start = 0
    for length in lengths:
        alone = model(row[:, start : start + length])
        torch.testing.assert_close(packed[:, start : start + length], alone, **EXACT)
        start += length


@pytest.mark.parametrize("pattern", PATTERNS)
def test_packed_documents_equal_separate_rows_in_every_pattern(pattern):
    """Each document has its own global tokens and windows; the rows have different document boundaries."""
    model = build(language_model(decoder=stack(pattern=pattern)))
    documents = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 2, 2, 2, 2]])
    row = ids(2, 9)
    packed = model(row, documents=documents)
    for number, spans in enumerate([[(0, 4), (4, 9)], [(0, 2), (2, 5), (5, 9)]]):
        for start, end in spans:
            alone = model(row[number : number + 1, start:end])
            torch.testing.assert_close(packed[number : number + 1, start:end], alone, **EXACT)


def test_repeated_document_number_is_another_document():
    model = build(language_model())
    row = ids(1, 6)
    repeated = model(row, documents=torch.tensor([[0, 0, 0, 1, 0, 0]]))
    distinct = model(row, documents=torch.tensor([[0, 0, 0, 1, 2, 2]]))
    torch.testing.assert_close(repeated, distinct, **EXACT)


def test_repeated_document_number_keeps_causality():
    model = build(language_model())
    row, documents = ids(1, 6), torch.tensor([[0, 0, 0, 1, 0, 0]])
    changed = row.clone()
    changed[0, 4:] = (row[0, 4:] + 1) % VOCAB_SIZE
    assert torch.equal(model(row, documents=documents)[:, :4], model(changed, documents=documents)[:, :4])


@many_examples
@given(config=language_models(), lengths=some.lists(some.integers(1, 7), min_size=1, max_size=4), data=some.data())
def test_padding_does_not_change_the_logits(config, lengths, data):
    model = build(config)
    rows = ids(len(lengths), max(lengths) + data.draw(some.integers(0, 2)), seed=data.draw(some.integers(0, 999)))
    padded = model(rows, lengths=torch.tensor(lengths))
    assert padded.isfinite().all()
    for row, length in enumerate(lengths):
        torch.testing.assert_close(padded[row, :length], model(rows[row : row + 1, :length])[0], **EXACT)


def test_packed_rows_padded_by_lengths_equal_documents():
    model = build(language_model())
    row, documents = ids(1, 7), torch.tensor([[0, 0, 0, 1, 1, 1, 1]])
    padded = model(row, documents=documents, lengths=torch.tensor([5]))
    torch.testing.assert_close(padded[:, :5], model(row[:, :5], documents=documents[:, :5]), **EXACT)


def test_config_builds_its_model():
    model = language_model().build()
    assert isinstance(model, LanguageModel)
    assert model.config == language_model()


def test_untied_model_has_another_embedding_matrix():
    tied, untied = (count_parameters(language_model(tie_weights=tie_weights).build()) for tie_weights in (True, False))
    assert untied - tied == VOCAB_SIZE * 16


@pytest.mark.parametrize(
    "lengths", [torch.tensor(3), torch.tensor([3]), torch.tensor([[3, 3]]), torch.tensor([3.0, 3.0])]
)
def test_lengths_of_wrong_shape_or_dtype_are_refused(lengths):
    with pytest.raises(UserError) as caught:
        build(language_model())(ids(2, 4), lengths=lengths)
    expected = "lengths must contain integers of shape (2,); "
    assert str(caught.value) == f"{expected}found {tuple(lengths.shape)} of {lengths.dtype}."


@pytest.mark.parametrize("documents", [torch.zeros(2).long(), torch.zeros(2, 3).long(), torch.zeros(2, 4)])
def test_documents_of_wrong_shape_or_dtype_are_refused(documents):
    with pytest.raises(UserError) as caught:
        build(language_model())(ids(2, 4), documents=documents)
    expected = "documents must contain integers of shape (2, 4); "
    assert str(caught.value) == f"{expected}found {tuple(documents.shape)} of {documents.dtype}."


def test_cache_without_rows_is_refused():
    with pytest.raises(UserError, match="at least one row and one position; found 0 and 4"):
        build(language_model()).start(0, 4)


def test_vocab_size_is_required():
    with pytest.raises(UserError, match=r"^vocab_size: this key is required"):
        LanguageModelConfig.read({})


def test_cross_kv_is_an_unknown_key():
    with pytest.raises(UserError, match=r"^cross_kv: unknown key; "):
        language_model(cross_kv="shared")


def test_wrong_kind_is_refused():
    with pytest.raises(UserError, match=r"^kind: found 'encoder-decoder'; expected 'language-model'\.$"):
        language_model(kind="encoder-decoder")
