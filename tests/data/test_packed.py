"""Packed documents: each once and whole, laid by first fit, and to the model what they would be alone."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard import UserError
from regard.data.packed import PackedRows, first_fit
from regard.data.rows import RowBatch
from regard.data.windows import TokenStream
from regard.model import LanguageModelConfig, StackConfig
from regard.train.loss import word_loss

START = 500


def documents(lengths: list[int]) -> TokenStream:
    """Documents of so many tokens; ids are places in the stream."""
    return TokenStream(np.arange(sum(lengths)), np.concatenate(([0], np.cumsum(lengths))).astype(np.int64))


def pieces(batches: list[RowBatch]) -> list[tuple[list[int], list[int]]]:
    """(what is read, what is wanted) of each piece."""
    found = []
    for batch in batches:
        assert batch.documents is not None
        for tokens, wanted, numbers in zip(batch.tokens, batch.wanted, batch.documents, strict=True):
            here = [numbers == number for number in range(int(numbers.max()) + 1)]
            found += [(tokens[cells].tolist(), wanted[cells].tolist()) for cells in here]
    return found


def plain_first_fit(sizes: list[int], length: int) -> list[int]:
    """First-fit decreasing as one would tell it."""
    rows: list[int] = []
    home = [0] * len(sizes)
    for piece in sorted(range(len(sizes)), key=lambda number: -sizes[number]):
        home[piece] = next((row for row, room in enumerate(rows) if room >= sizes[piece]), len(rows))
        if home[piece] == len(rows):
            rows.append(length)
        rows[home[piece]] -= sizes[piece]
    return home


LENGTHS = st.lists(st.integers(0, 30), min_size=1, max_size=40).filter(lambda lengths: max(lengths) > 1)
SMALL = st.integers(1, 12)


@given(sizes=st.lists(st.integers(1, 16), min_size=1, max_size=120), more=st.integers(0, 9))
def test_pieces_are_laid_as_first_fit_decreasing_lays_them(sizes: list[int], more: int) -> None:
    length = max(sizes) + more
    assert first_fit(np.array(sizes), length).tolist() == plain_first_fit(sizes, length)


@given(LENGTHS, SMALL, SMALL, st.sampled_from([None, START]))
def test_every_token_of_every_document_is_predicted_once_from_those_before_it(
    lengths: list[int], length: int, rows: int, start: int | None
) -> None:
    stream = documents(lengths)
    batches = PackedRows(stream, length, rows, start=start)
    for _ in range(2):
        seen = [pair for tokens, wanted in pieces(list(batches.epoch())) for pair in zip(tokens, wanted, strict=True)]
        expected = []
        for first, last in itertools.pairwise(stream.offsets.tolist()):
            words = list(range(first, last))
            before = [start, *words] if start is not None else words
            expected += list(zip(before, words if start is not None else words[1:], strict=False))
        assert sorted(seen) == sorted(expected)


@given(LENGTHS, SMALL, SMALL)
def test_only_documents_longer_than_a_row_are_split(lengths: list[int], length: int, rows: int) -> None:
    found = sorted(
        wanted for _, wanted in pieces(list(PackedRows(documents(lengths), length, rows, start=START).epoch()))
    )
    wanted = []
    for first, size in zip(np.cumsum([0, *lengths]).tolist(), lengths, strict=False):
        wanted += [list(range(at, min(at + length, first + size))) for at in range(first, first + size, length)]
    assert found == sorted(wanted)


@given(LENGTHS, SMALL, SMALL)
def test_padding_is_behind_all_documents_of_a_row(lengths: list[int], length: int, rows: int) -> None:
    for batch in PackedRows(documents(lengths), length, rows, start=START, padding=77).epoch():
        assert batch.documents is not None
        real = torch.arange(length) < batch.lengths[:, None]
        assert ((batch.documents >= 0) == real).all()
        assert (batch.tokens[~real] == 77).all()
        assert (batch.documents.diff(dim=1)[real[:, 1:]] >= 0).all()
        assert batch.count == int(real.sum())


def test_rows_stay_and_their_order_changes() -> None:
    batches = PackedRows(documents([7, 3, 5, 2, 9, 4, 4, 1] * 4), 10, 2, start=START, seed=1)
    epochs = [[row.tolist() for batch in batches.epoch() for row in batch.wanted] for _ in range(2)]
    assert epochs[0] != epochs[1]
    assert sorted(epochs[0]) == sorted(epochs[1])


def test_the_report_says_how_little_is_padding() -> None:
    lengths = np.random.default_rng(0).integers(1, 200, 5000).tolist()
    report = PackedRows(documents(lengths), 256, 1, start=START).report
    assert report.tokens == sum(lengths)
    assert report.padding < 0.0005
    assert "5,000 documents packed (0 of them split), 0.0 % padding." in str(report)


@given(LENGTHS, SMALL)
def test_positions_count_from_the_first_token_of_each_document(lengths: list[int], length: int) -> None:
    for batch in PackedRows(documents(lengths), length, 2, start=START).epoch():
        assert batch.documents is not None
        for row in range(2):
            for number in range(int(batch.documents[row].max()) + 1):
                here = batch.positions[row][batch.documents[row] == number]
                assert here.tolist() == list(range(len(here)))


def test_a_packed_document_costs_the_model_what_it_costs_alone() -> None:
    torch.manual_seed(0)
    config = LanguageModelConfig(vocabulary=20, width=16, decoder=StackConfig(layers=2))
    model = config.build().double().eval()
    dice = np.random.default_rng(1)
    lengths = [5, 3, 1, 8, 2, 6, 4]
    words = dice.integers(3, 20, sum(lengths))
    stream = TokenStream(words, np.concatenate(([0], np.cumsum(lengths))).astype(np.int64))
    packed = torch.zeros((), dtype=torch.float64)
    for batch in PackedRows(stream, 11, 2, start=1).epoch():
        scores = model(batch.tokens, lengths=batch.lengths, documents=batch.documents)
        packed += word_loss(scores, batch.wanted, batch.lengths).plain
    alone = torch.zeros((), dtype=torch.float64)
    for first, last in itertools.pairwise(stream.offsets.tolist()):
        document = torch.from_numpy(words[None, first:last])
        before = torch.cat((torch.tensor([[1]]), document[:, :-1]), dim=1)
        alone += word_loss(model(before), document).plain
    torch.testing.assert_close(packed, alone, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("lengths", "start"), [([0, 0], START), ([1, 0, 1], None)])
def test_documents_with_nothing_to_predict_are_refused(lengths: list[int], start: int | None) -> None:
    with pytest.raises(UserError, match="no document with a token to predict"):
        PackedRows(documents(lengths), 4, 2, start=start)
