"""Tree constraints: outputs are trees over their words, every such tree is allowed, and gold trees stay unchanged."""

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import hypothesis
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from regard import UserError
from regard.data.trees.linearization import EOS_ID as EOS
from regard.data.trees.linearization import TreeVocabulary
from regard.data.trees.tree import Tree
from regard.decode import (
    Constraints,
    DecodeConfig,
    Engine,
    GeneratedTokens,
    Hypothesis,
    Request,
    TreeConstraint,
    TreeProcessor,
    make_strategy,
    search,
    search_all,
    search_batch,
)
from regard.decode.shortlist import Shortlist, search_batch_shortlisted
from regard.decode.strategy import SlottedStrategy
from regard.model import EncoderDecoder, EncoderDecoderConfig
from regard.model.embedding import SpecialTokensConfig
from tests.decode.toy_models import TableModel, TensorState, small_stack, start_tokens

SYMBOLS = TreeVocabulary(("<pad>", "<bos>", "<eos>", "(S", "(NP", ")", "DT", "NN"))
VOCAB_SIZE, OPEN, CLOSE, LEAF = len(SYMBOLS), 3, 5, 6
SETTINGS = {
    "greedy": {"beam_size": 1},
    "sampling": {"beam_size": 1, "sample": True, "temperature": 1.7},
    "truncated sampling": {
        "beam_size": 1,
        "sample": True,
        "top_k": 2,
        "top_p": 0.8,
        "min_p": 0.1,
        "repetition_penalty": 1.4,
    },
    "beam search": {"beam_size": 4},
    "no length penalty": {"beam_size": 3, "length_penalty": {"kind": "none"}},
    "diverse": {"beam_size": 4, "beam_groups": 2},
}
all_settings = pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())


def tree_over(words: int, max_chain: int = 6) -> TreeConstraint:
    return TreeConstraint.over(words, SYMBOLS, max_chain)


def decode(
    model: Any, settings: dict, trees: Sequence[TreeConstraint | None], max_lengths: Sequence[int]
) -> list[list[Hypothesis]]:
    constraints = [Constraints(tree=each) for each in trees]
    strategy = make_strategy(DecodeConfig(**settings), max_lengths, EOS, constraints=constraints)
    return search(model, model.start(), start_tokens(len(trees)), strategy)


def longest_chain(tokens: Sequence[int]) -> int:
    runs = (list(group) for opens, group in itertools.groupby(tokens, lambda token: token in SYMBOLS.open_ids) if opens)
    return max(map(len, runs))


def assert_tree(one: Hypothesis, tree: TreeConstraint, max_length: int) -> None:
    words = [f"word{number}" for number in range(tree.words)]
    assert one.ended
    assert set(one.tokens) <= {*SYMBOLS.open_ids, SYMBOLS.close_id, *SYMBOLS.leaf_ids}
    assert SYMBOLS.decode_tree(one.tokens, words).words() == tuple(words)
    assert longest_chain(one.tokens) <= tree.max_chain
    assert len(one.tokens) + 1 <= min(max_length, tree.max_length)


@all_settings
@hypothesis.settings(max_examples=25)
@given(
    seed=st.integers(0, 10_000),
    rows=st.lists(st.tuples(st.integers(1, 7), st.integers(0, 25)), min_size=1, max_size=5),
    max_chain=st.integers(1, 4),
    padding=st.integers(0, 3),
)
def test_every_output_is_a_tree(settings: dict, seed: int, rows: list, max_chain: int, padding: int) -> None:
    trees = [tree_over(words, max_chain) for words, _ in rows]
    max_lengths = [tree.min_length + more for tree, (_, more) in zip(trees, rows, strict=True)]
    model = TableModel(len(rows), VOCAB_SIZE + padding, seed)
    assert_all_trees(trees, max_lengths, decode(model, settings, trees, max_lengths))


def assert_all_trees(
    trees: Sequence[TreeConstraint], max_lengths: Sequence[int], found: Sequence[list[Hypothesis]]
) -> None:
    for tree, max_length, hypotheses in zip(trees, max_lengths, found, strict=True):
        assert hypotheses
        for one in hypotheses:
            assert_tree(one, tree, max_length)


@pytest.mark.one_in(2)
@all_settings
@pytest.mark.parametrize("token", range(VOCAB_SIZE + 2))
def test_models_that_prefer_one_token_generate_trees(settings: dict, token: int) -> None:
    trees, max_lengths = [tree_over(1, 2), tree_over(5, 3), tree_over(3)], [4, 30, 300]
    for logit in (60.0, 1e30):
        model = TableModel(3, VOCAB_SIZE + 2, token)
        model.logits[..., token] += logit
        assert_all_trees(trees, max_lengths, decode(model, settings, trees, max_lengths))


def test_trees_of_models_that_prefer_one_token() -> None:
    """Preferring to open brackets opens `max_chain` at a time; preferring leaves gives the flattest tree."""
    found = {}
    for name, token in {"open": OPEN, "close": CLOSE, "leaf": LEAF, "eos": EOS}.items():
        model = TableModel(1, VOCAB_SIZE, 0)
        model.logits[...] = 0.0
        model.logits[..., token] = 50.0
        ((one,),) = decode(model, SETTINGS["greedy"], [tree_over(2, 3)], [40])
        found[name] = " ".join(SYMBOLS.decode(one.tokens))
    assert found["open"] == "(S (S (S DT (S (S (S DT ) ) ) ) ) )"
    assert found["leaf"] == "(S DT DT )"
    assert found["close"] == "(S (S (S DT ) ) (S (S (S DT ) ) ) )"  # ties go to the first symbol, which opens
    assert found["eos"].startswith("(S ")


def test_logprobs_match_the_model() -> None:
    for settings in SETTINGS.values():
        model = TableModel(2, VOCAB_SIZE, 3)
        for row, hypotheses in enumerate(decode(model, settings, [tree_over(3), tree_over(2)], [14, 20])):
            for one in hypotheses:
                assert one.logprob == pytest.approx(sum(one.token_logprobs))
                before, last = 0, 1
                for token, logprob in zip((*one.tokens, EOS), one.token_logprobs, strict=True):
                    assert logprob == pytest.approx(float(model.logits[row, before, last].log_softmax(dim=-1)[token]))
                    before, last = last, token


def all_trees(words: int, max_symbols: int) -> Iterator[tuple[int, ...]]:
    """Every constituent over this many words, by exhaustive enumeration."""
    if words >= 1 and max_symbols >= words + 2:
        for label in SYMBOLS.open_ids:
            for children in all_children(words, max_symbols - 2):
                yield (label, *children, CLOSE)


def all_children(words: int, max_symbols: int) -> Iterator[tuple[int, ...]]:
    """Every sequence of leaves and constituents over this many words."""
    for count in range(1, words + 1):
        rest = words - count
        leaves = [(leaf,) for leaf in SYMBOLS.leaf_ids] if count == 1 else []
        for first in (*leaves, *all_trees(count, max_symbols - rest)):
            if rest == 0:
                yield first
            else:
                for others in all_children(rest, max_symbols - len(first)):
                    yield (*first, *others)


def all_outputs(processor: TreeProcessor, max_length: int) -> set[tuple[int, ...]]:
    """All outputs that the processor allows, by following every symbol that is not excluded."""
    prefixes, outputs = [()], set()
    for length in range(max_length):
        count = len(prefixes)
        tokens = torch.randint(0, VOCAB_SIZE, (count, max_length))  # tokens past the length must not matter
        if length:
            tokens[:, :length] = torch.tensor(prefixes)
        logits = torch.zeros(count, VOCAB_SIZE, dtype=torch.float64)
        allowed = processor(logits, GeneratedTokens(tokens, torch.full((count,), length))) == 0.0
        assert bool(allowed.any(dim=1).all()), "no symbol is allowed"
        longer = [(*prefixes[row], token) for row, token in allowed.nonzero().tolist()]
        outputs |= {each[:-1] for each in longer if each[-1] == EOS}
        prefixes = [each for each in longer if each[-1] != EOS]
        if not prefixes:
            return outputs
    raise AssertionError("an output is longer than its maximum length")


@pytest.mark.parametrize(
    ("words", "max_length", "max_chain"),
    [(1, 4, 6), (1, 5, 6), (1, 8, 6), (1, 12, 2), (2, 5, 6), (2, 9, 6), (2, 10, 1), (3, 6, 6), (3, 10, 2), (4, 9, 3)],
)
def test_exactly_the_trees_over_the_words_are_allowed(words: int, max_length: int, max_chain: int) -> None:
    expected = {tree for tree in all_trees(words, max_length - 1) if longest_chain(tree) <= max_chain}
    assert all_outputs(TreeProcessor([tree_over(words, max_chain)], [max_length], EOS), max_length) == expected


@pytest.mark.parametrize("words", range(1, 12))
def test_min_length_is_enough_and_one_less_is_not(words: int) -> None:
    tree = tree_over(words)
    assert not any(all_trees(words, tree.min_length - 2))
    model = TableModel(1, VOCAB_SIZE, words)
    ((one, *_),) = decode(model, SETTINGS["beam search"], [tree], [tree.min_length])
    assert_tree(one, tree, tree.min_length)
    assert len(one.tokens) + 1 == tree.min_length
    with pytest.raises(
        UserError, match=f"over {words} words needs at least {words + 3} symbols.* at most {words + 2};"
    ):
        make_strategy(DecodeConfig(), [words + 2], EOS, constraints=[Constraints(tree=tree)])


def test_no_tree_is_longer_than_its_max_length() -> None:
    for words, max_chain in itertools.product((1, 2, 3), (1, 2)):
        tree = tree_over(words, max_chain)
        model = TableModel(1, VOCAB_SIZE, 0)
        model.logits[..., OPEN] += 50.0
        ((one,),) = decode(model, SETTINGS["greedy"], [tree], [1000])
        assert len(one.tokens) + 1 == tree.max_length


class GoldModel:
    """A model whose most likely symbol at every step is the gold tree's, whatever was generated before."""

    def __init__(self, texts: Sequence[Sequence[int]], seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        longest = max(map(len, texts)) + 2
        self.logits = torch.randn(len(texts), longest, VOCAB_SIZE, generator=generator, dtype=torch.float64)
        for row, text in enumerate(texts):
            for position in range(longest):
                self.logits[row, position, text[position] if position < len(text) else EOS] += 12.0

    def start(self) -> TensorState:
        rows = len(self.logits)
        return TensorState(torch.arange(rows), torch.zeros(rows, dtype=torch.long))

    def step(self, tokens: Tensor, state: TensorState) -> tuple[Tensor, TensorState]:
        row, position = state.tensors
        logits = self.logits[row, position.clamp(max=self.logits.shape[1] - 1)]
        return logits[:, None], TensorState(row, position + 1)


GOLD = [
    "(S (NP (DT the) (NN cat)) (NN slept))",
    "(NP (NN rain))",
    "(S (S (NP (NP (DT a) (NN b)) (NN c))) (NP (NP (NN d))))",
]


@pytest.mark.parametrize("name", ["greedy", "beam search", "no length penalty"])
@pytest.mark.parametrize("seed", range(5))
def test_constraint_does_not_change_gold_trees(name: str, seed: int) -> None:
    trees = [Tree.parse(text) for text in GOLD]
    model = GoldModel([SYMBOLS.encode_tree(tree) for tree in trees], seed)
    max_lengths = [len(SYMBOLS.encode_tree(tree)) + 1 for tree in trees]
    constrained = decode(model, SETTINGS[name], [tree_over(len(tree.words())) for tree in trees], max_lengths)
    unconstrained = decode(model, SETTINGS[name], [None] * 3, max_lengths)
    for tree, (mine, *_), (theirs, *_) in zip(trees, constrained, unconstrained, strict=True):
        assert mine == theirs
        assert SYMBOLS.decode_tree(mine.tokens, tree.words()) == tree


def test_rows_without_a_tree_are_unconstrained() -> None:
    for settings in SETTINGS.values():
        model = TableModel(3, VOCAB_SIZE, 8)
        mixed = decode(model, settings, [None, tree_over(3), None], [9, 12, 5])
        for row, max_length in ((0, 9), (2, 5)):
            unconstrained = decode(model, settings, [None] * 3, [max_length] * 3)[row]
            if "sample" not in settings:
                assert [one.tokens for one in mixed[row]] == [one.tokens for one in unconstrained]
        for one in mixed[1]:
            assert_tree(one, tree_over(3), 12)


def test_processor_never_waits_for_the_device() -> None:
    """On the meta device, every operation that needs a value fails."""
    processor = TreeProcessor([tree_over(3), None], [9, 9], EOS, device="meta")
    generated = GeneratedTokens(
        torch.zeros(8, 64, dtype=torch.long, device="meta"), torch.zeros(8, dtype=torch.long, device="meta")
    )
    for size in (VOCAB_SIZE, VOCAB_SIZE + 5):
        assert processor(torch.zeros(8, size, device="meta"), generated).shape == (8, size)


def test_tree_constraint_becomes_a_processor_with_its_own_graph_key() -> None:
    def make(tree: TreeConstraint | None) -> SlottedStrategy:
        strategy = make_strategy(DecodeConfig(beam_size=1), [9], EOS, constraints=[Constraints(tree=tree)])
        assert isinstance(strategy, SlottedStrategy)
        return strategy

    strategy, plain, other = make(tree_over(3)), make(None), make(TreeConstraint(3, 3, 5, 9))
    assert [type(processor) for processor in strategy.processors] == [TreeProcessor]
    assert len(strategy.tensors()) == len(plain.tensors()) + 3
    assert len({each.graph_key() for each in (strategy, plain, other)}) == 3


@pytest.fixture(scope="module")
def parser() -> EncoderDecoder:
    torch.manual_seed(4)
    tokens = SpecialTokensConfig(pad=0, bos=1, eos=EOS)
    stack = small_stack(1)
    config = EncoderDecoderConfig(vocab_size=23, width=8, encoder=stack, decoder=stack, special_tokens=tokens)
    model = config.build()
    with torch.no_grad():
        model.embed_tokens.weight *= 2.5
    return model.double().eval()


def mixed_requests(count: int, seed: int) -> list[Request]:
    rng = random.Random(seed)
    requests = []
    for number in range(count):
        words = rng.choice([1, 2, 5, 9, 30])
        source = tuple(rng.randrange(3, 23) for _ in range(words))
        tree = None if rng.random() < 0.2 else tree_over(words, rng.choice([2, 6]))
        max_length = words + rng.choice([3, 4, 20, 80])
        config = DecodeConfig(**rng.choice(list(SETTINGS.values())))
        requests.append(Request(source, max_length, config, Constraints(seed=number, tree=tree)))
    return requests


def assert_trees(requests: Sequence[Request], found: Sequence[list[Hypothesis]]) -> None:
    for request, hypotheses in zip(requests, found, strict=True):
        assert hypotheses
        for one in hypotheses:
            if request.constraints.tree is not None:
                assert_tree(one, request.constraints.tree, request.max_length)


def assert_same(found: Sequence[list[Hypothesis]], expected: Sequence[list[Hypothesis]]) -> None:
    for mine, theirs in zip(found, expected, strict=True):
        assert [one.tokens for one in mine] == [one.tokens for one in theirs]
        assert [one.score for one in mine] == pytest.approx([one.score for one in theirs])


def test_engine_and_batched_search_generate_the_same_trees(parser: EncoderDecoder) -> None:
    requests = mixed_requests(60, 1)
    alone = [search_batch(parser, [request], EOS)[0] for request in requests]
    assert_trees(requests, alone)
    assert_same(search_all(parser, requests, EOS, batch_tokens=60), alone)
    engine = Engine(parser, EOS, max_rows=12)
    futures = [engine.submit(request) for request in requests[:20]]
    for request in requests[20:]:  # submitted while the first are being decoded
        engine.step()
        futures.append(engine.submit(request))
    engine.run()
    assert_same([future.result(0) for future in futures], alone)


def test_trees_in_different_symbols_are_decoded_in_different_batches(parser: EncoderDecoder) -> None:
    other = TreeVocabulary((*SYMBOLS.symbols[:5], "(VP", *SYMBOLS.symbols[5:]))
    first = Request((5, 6), 30, DecodeConfig(beam_size=2), Constraints(tree=tree_over(2)))
    second = replace(first, constraints=Constraints(tree=TreeConstraint.over(2, other)))
    third = replace(first, constraints=Constraints(tree=tree_over(7)))
    assert len({first.batch_key, second.batch_key, third.batch_key}) == 2
    found = search_all(parser, [first, second, third], EOS, batch_tokens=100)
    other.decode_tree(found[1][0].tokens, ["a", "b"])
    assert_trees([first, third], [found[0], found[2]])
    with pytest.raises(UserError, match="same symbols; found 2"):
        search_batch(parser, [first, second], EOS)


def test_engine_reports_impossible_trees_to_their_request(parser: EncoderDecoder) -> None:
    engine = Engine(parser, EOS, max_rows=8, max_length=20)
    bad = engine.submit(Request((5,) * 30, 200, DecodeConfig(beam_size=2), Constraints(tree=tree_over(30))))
    good = engine.submit(Request((5,) * 4, 200, DecodeConfig(beam_size=2), Constraints(tree=tree_over(4))))
    engine.run()
    assert_trees([good.request], [good.result(0)])
    with pytest.raises(UserError, match="over 30 words needs at least 33 symbols"):
        bad.result(0)


@pytest.mark.parametrize("name", ["greedy", "beam search", "sampling"])
def test_captured_search_generates_the_same_trees(name: str) -> None:
    pytest.importorskip("triton")
    from tests.decode.test_cuda_graphs import make_decoder, make_model, random_sources

    model = make_model()
    decoder = make_decoder(model)
    config = DecodeConfig(**SETTINGS[name])
    requests = [
        Request(source, len(source) + 3 + 9 * (number % 5), config, Constraints(tree=tree_over(len(source))))
        for number, source in enumerate(random_sources(7))
    ]
    expected = search_batch(model, requests, EOS)
    assert_trees(requests, expected)
    for _ in range(2):
        for mine, theirs in zip(search_batch(decoder, requests, EOS), expected, strict=True):
            assert [one.tokens for one in mine] == [one.tokens for one in theirs]
    engine = Engine(decoder, EOS, max_rows=8)
    futures = [engine.submit(request) for request in requests]
    engine.run()
    assert_trees(requests, [future.result(0) for future in futures])


@pytest.mark.parametrize(
    "constraints", [Constraints(prefix=(3,)), Constraints(forbidden=((4,),)), Constraints(required=((6,),))], ids=str
)
def test_trees_with_other_constraints_are_refused(constraints: Constraints) -> None:
    with pytest.raises(UserError, match="A tree cannot have"):
        make_strategy(DecodeConfig(), [20], EOS, constraints=[replace(constraints, tree=tree_over(3))])


def test_trees_with_a_shortlist_are_refused(parser: EncoderDecoder) -> None:
    shortlist = Shortlist(torch.arange(8), torch.full((23, 1), -1), torch.zeros(2, 32))
    requests = [Request((5, 6), 30, DecodeConfig(beam_size=2), Constraints(tree=tree_over(2)))]
    with pytest.raises(UserError, match="leave out the shortlist"):
        search_batch_shortlisted(parser, requests, EOS, shortlist)


def test_impossible_trees_are_refused() -> None:
    with pytest.raises(UserError, match="at least one word; found 0"):
        tree_over(0)
    with pytest.raises(UserError, match="max_chain = 0"):
        tree_over(3, 0)
    with pytest.raises(UserError, match="each needs at least one"):
        TreeConstraint(3, 5, 5, 8)
    with pytest.raises(UserError, match=r"EOS, 6, .* 3"):
        TreeProcessor([tree_over(3)], [9], 6)
    with pytest.raises(UserError, match="found 0"):
        TreeProcessor([None], [9], EOS)
