"""Document packing: first-fit decreasing; every document occurs once and is independent of others in its row."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard import UserError
from regard.data.batching.packing import PackedDocuments, first_fit
from regard.data.batching.row_batch import RowBatch
from regard.data.batching.windows import TokenStream
from regard.model import LanguageModelConfig, StackConfig
from regard.train.loss import cross_entropy

BOS = 500


def documents(lengths: list[int]) -> TokenStream:
    """Documents of these lengths; each id is its own offset in the stream."""
    return TokenStream(np.arange(sum(lengths)), np.concatenate(([0], np.cumsum(lengths))).astype(np.int64))


def pieces(batches: list[RowBatch]) -> list[tuple[list[int], list[int]]]:
    """(tokens, targets) of each piece."""
    found = []
    for batch in batches:
        assert batch.documents is not None
        for tokens, targets, numbers in zip(batch.tokens, batch.targets, batch.documents, strict=True):
            masks = [numbers == number for number in range(int(numbers.max()) + 1)]
            found += [(tokens[mask].tolist(), targets[mask].tolist()) for mask in masks]
    return found


def reference_first_fit(sizes: list[int], length: int) -> list[int]:
    """First-fit decreasing, piece by piece."""
    room: list[int] = []
    row = [0] * len(sizes)
    for piece in sorted(range(len(sizes)), key=lambda number: -sizes[number]):
        row[piece] = next((number for number, left in enumerate(room) if left >= sizes[piece]), len(room))
        if row[piece] == len(room):
            room.append(length)
        room[row[piece]] -= sizes[piece]
    return row


LENGTHS = st.lists(st.integers(0, 30), min_size=1, max_size=40).filter(lambda lengths: max(lengths) > 1)
SMALL = st.integers(1, 12)


@given(sizes=st.lists(st.integers(1, 16), min_size=1, max_size=120), more=st.integers(0, 9))
def test_first_fit_equals_the_reference(sizes: list[int], more: int) -> None:
    length = max(sizes) + more
    assert first_fit(np.array(sizes), length).tolist() == reference_first_fit(sizes, length)


@given(LENGTHS, SMALL, SMALL, st.sampled_from([None, BOS]))
def test_every_token_is_predicted_once_from_the_one_before_it(
    lengths: list[int], length: int, rows: int, bos_id: int | None
) -> None:
    stream = documents(lengths)
    batches = PackedDocuments(stream, length, rows, bos_id=bos_id)
    for _ in range(2):
        found = [
            pair for tokens, targets in pieces(list(batches.epoch())) for pair in zip(tokens, targets, strict=True)
        ]
        expected = []
        for first, last in itertools.pairwise(stream.offsets.tolist()):
            ids = list(range(first, last))
            tokens = [bos_id, *ids] if bos_id is not None else ids
            expected += list(zip(tokens, ids if bos_id is not None else ids[1:], strict=False))
        assert sorted(found) == sorted(expected)


@given(LENGTHS, SMALL, SMALL)
def test_only_documents_longer_than_a_row_are_split(lengths: list[int], length: int, rows: int) -> None:
    batches = PackedDocuments(documents(lengths), length, rows, bos_id=BOS)
    expected = []
    for first, size in zip(np.cumsum([0, *lengths]).tolist(), lengths, strict=False):
        expected += [
            list(range(start, min(start + length, first + size))) for start in range(first, first + size, length)
        ]
    assert sorted(targets for _, targets in pieces(list(batches.epoch()))) == sorted(expected)


@given(LENGTHS, SMALL, SMALL)
def test_padding_is_at_the_end_of_rows(lengths: list[int], length: int, rows: int) -> None:
    for batch in PackedDocuments(documents(lengths), length, rows, bos_id=BOS, pad_id=77).epoch():
        assert batch.documents is not None
        real = torch.arange(length) < batch.lengths[:, None]
        assert ((batch.documents >= 0) == real).all()
        assert (batch.tokens[~real] == 77).all()
        assert (batch.documents.diff(dim=1)[real[:, 1:]] >= 0).all()
        assert batch.count == int(real.sum())


def test_rows_are_shuffled_each_epoch() -> None:
    batches = PackedDocuments(documents([7, 3, 5, 2, 9, 4, 4, 1] * 4), 10, 2, bos_id=BOS, seed=1)
    epochs = [[row.tolist() for batch in batches.epoch() for row in batch.targets] for _ in range(2)]
    assert epochs[0] != epochs[1]
    assert sorted(epochs[0]) == sorted(epochs[1])


def test_padding_is_small() -> None:
    lengths = np.random.default_rng(0).integers(1, 200, 5000).tolist()
    stats = PackedDocuments(documents(lengths), 256, 1, bos_id=BOS).stats
    assert stats.tokens == sum(lengths)
    assert stats.padding < 0.0005
    assert "5,000 packed documents (0 of them split), 0.0 % padding." in str(stats)


@given(LENGTHS, SMALL)
def test_positions_restart_with_each_document(lengths: list[int], length: int) -> None:
    for batch in PackedDocuments(documents(lengths), length, 2, bos_id=BOS).epoch():
        assert batch.documents is not None
        for row in range(2):
            for number in range(int(batch.documents[row].max()) + 1):
                positions = batch.positions[row][batch.documents[row] == number]
                assert positions.tolist() == list(range(len(positions)))


def test_loss_of_packed_documents_equals_unpacked() -> None:
    torch.manual_seed(0)
    config = LanguageModelConfig(vocab_size=20, width=16, decoder=StackConfig(layers=2))
    model = config.build().double().eval()
    lengths = [5, 3, 1, 8, 2, 6, 4]
    ids = np.random.default_rng(1).integers(3, 20, sum(lengths))
    stream = TokenStream(ids, np.concatenate(([0], np.cumsum(lengths))).astype(np.int64))
    packed = torch.zeros((), dtype=torch.float64)
    for batch in PackedDocuments(stream, 11, 2, bos_id=1).epoch():
        scores = model(batch.tokens, lengths=batch.lengths, documents=batch.documents)
        packed += cross_entropy(scores, batch.targets, batch.lengths).nll
    alone = torch.zeros((), dtype=torch.float64)
    for first, last in itertools.pairwise(stream.offsets.tolist()):
        document = torch.from_numpy(ids[None, first:last])
        tokens = torch.cat((torch.tensor([[1]]), document[:, :-1]), dim=1)
        alone += cross_entropy(model(tokens), document).nll
    torch.testing.assert_close(packed, alone, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("lengths", "bos_id"), [([0, 0], BOS), ([1, 0, 1], None)])
def test_documents_without_a_target_are_refused(lengths: list[int], bos_id: int | None) -> None:
    with pytest.raises(UserError, match="no document with a token to predict"):
        PackedDocuments(documents(lengths), 4, 2, bos_id=bos_id)
