"""Under the rule every output is a tree over its words, every such tree can be written, a good model is left alone."""

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from regard import UserError
from regard.attention import HeadsConfig
from regard.data.trees import END, Tree, TreeSymbols
from regard.decode import (
    DecodeConfig,
    Engine,
    Hypothesis,
    Request,
    TreeRule,
    TreeWish,
    Wish,
    Written,
    make_chooser,
    search,
    search_all,
    search_batch,
)
from regard.decode.shortlist import Shortlist, search_batch_among
from regard.model import EncoderDecoder, EncoderDecoderConfig, FeedForwardConfig, StackConfig
from regard.model.embedding import TokensConfig
from tests.decode.test_search import Table, start

SYMBOLS = TreeSymbols(("<pad>", "<start>", "<end>", "(S", "(NP", ")", "DT", "NN"))
SIZE, OPEN, CLOSE, LEAF = len(SYMBOLS), 3, 5, 6
WAYS = {
    "greedy": {"beams": 1},
    "drawn": {"beams": 1, "sample": True, "temperature": 1.7},
    "drawn from few": {"beams": 1, "sample": True, "top_k": 2, "top_p": 0.8, "min_p": 0.1, "repetition": 1.4},
    "beams": {"beams": 4},
    "plain sums": {"beams": 3, "penalty": "none"},
    "diverse": {"beams": 4, "groups": 2},
}
every_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())


def tree_wish(words: int, chain: int = 6) -> TreeWish:
    return TreeWish.over(words, SYMBOLS, chain)


def found_by(
    table: Table, way: dict, trees: Sequence[TreeWish | None], limits: Sequence[int]
) -> list[list[Hypothesis]]:
    wishes = [Wish(tree=each) for each in trees]
    chooser = make_chooser(DecodeConfig(**way), limits, END, wishes=wishes)
    return search(table, table.start(), start(len(trees)), chooser)


def longest_run(tokens: Sequence[int]) -> int:
    runs = (list(group) for opens, group in itertools.groupby(tokens, lambda token: token in SYMBOLS.opens) if opens)
    return max(map(len, runs))


def assert_tree(one: Hypothesis, wish: TreeWish, limit: int) -> None:
    words = [f"word{number}" for number in range(wish.words)]
    assert one.ended
    assert set(one.tokens) <= {*SYMBOLS.opens, SYMBOLS.close, *SYMBOLS.leaves}
    assert SYMBOLS.decode_tree(one.tokens, words).words() == tuple(words)
    assert longest_run(one.tokens) <= wish.chain
    assert len(one.tokens) + 1 <= min(limit, wish.largest_limit)


@every_way
@settings(max_examples=25)
@given(
    seed=st.integers(0, 10_000),
    rows=st.lists(st.tuples(st.integers(1, 7), st.integers(0, 25)), min_size=1, max_size=5),
    chain=st.integers(1, 4),
    extra=st.integers(0, 3),
)
def test_every_output_is_a_tree_whatever_the_scores(way: dict, seed: int, rows: list, chain: int, extra: int) -> None:
    trees = [tree_wish(words, chain) for words, _ in rows]
    limits = [wish.smallest_limit + more for wish, (_, more) in zip(trees, rows, strict=True)]
    table = Table(len(rows), SIZE + extra, seed)
    for wish, limit, hypotheses in zip(trees, limits, found_by(table, way, trees, limits), strict=True):
        assert hypotheses
        for one in hypotheses:
            assert_tree(one, wish, limit)


@every_way
@pytest.mark.parametrize("wanted", range(SIZE + 2))
def test_a_model_that_always_wants_the_same_still_writes_trees(way: dict, wanted: int) -> None:
    trees, limits = [tree_wish(1, 2), tree_wish(5, 3), tree_wish(3)], [4, 30, 300]
    for strength in (60.0, 1e30):
        table = Table(3, SIZE + 2, wanted)
        table.scores[..., wanted] += strength
        for wish, limit, hypotheses in zip(trees, limits, found_by(table, way, trees, limits), strict=True):
            assert hypotheses
            for one in hypotheses:
                assert_tree(one, wish, limit)


def test_what_a_stubborn_model_writes() -> None:
    """One that wants to open opens `chain` at a time; one that wants to close or end writes the flattest tree."""
    found = {}
    for name, wanted in {"open": OPEN, "close": CLOSE, "leaf": LEAF, "end": END}.items():
        table = Table(1, SIZE, 0)
        table.scores[...] = 0.0
        table.scores[..., wanted] = 50.0
        ((one,),) = found_by(table, WAYS["greedy"], [tree_wish(2, 3)], [40])
        found[name] = " ".join(SYMBOLS.decode(one.tokens))
    assert found["open"] == "(S (S (S DT (S (S (S DT ) ) ) ) ) )"
    assert found["leaf"] == "(S DT DT )"
    assert found["close"] == "(S (S (S DT ) ) (S (S (S DT ) ) ) )"  # ties go to the first symbol, which opens
    assert found["end"].startswith("(S ")


def test_log_probabilities_stay_the_models_own() -> None:
    for way in WAYS.values():
        table = Table(2, SIZE, 3)
        for row, hypotheses in enumerate(found_by(table, way, [tree_wish(3), tree_wish(2)], [14, 20])):
            for one in hypotheses:
                total = sum(one.steps)
                assert one.log_probability == pytest.approx(total)
                before, last = 0, 1
                for token, step in zip((*one.tokens, END), one.steps, strict=True):
                    assert step == pytest.approx(float(table.scores[row, before, last].log_softmax(dim=-1)[token]))
                    before, last = last, token


def trees_over(words: int, room: int) -> Iterator[tuple[int, ...]]:
    """Every constituent over so many words, in at most so many symbols, by trying everything."""
    if words >= 1 and room >= words + 2:
        for label in SYMBOLS.opens:
            for inside in rows_over(words, room - 2):
                yield (label, *inside, CLOSE)


def rows_over(words: int, room: int) -> Iterator[tuple[int, ...]]:
    """Leaves and constituents side by side."""
    for count in range(1, words + 1):
        rest = words - count
        firsts = [(leaf,) for leaf in SYMBOLS.leaves] if count == 1 else []
        for first in (*firsts, *trees_over(count, room - rest)):
            if rest == 0:
                yield first
            else:
                for others in rows_over(rest, room - len(first)):
                    yield (*first, *others)


def written_under(rule: TreeRule, limit: int) -> set[tuple[int, ...]]:
    """All that can be written, found by following every symbol that is not hidden."""
    texts, over = [()], set()
    for length in range(limit):
        tokens = torch.zeros(len(texts), limit, dtype=torch.long)
        if length:
            tokens[:, :length] = torch.tensor(texts)
        tokens[:, length:] = torch.randint(0, SIZE, (len(texts), limit - length))  # what is not written yet is not read
        scores = torch.zeros(len(texts), SIZE, dtype=torch.float64)
        open_ways = rule.hide(scores, Written(tokens, torch.full((len(texts),), length))) == 0.0
        assert bool(open_ways.any(dim=1).all()), "a dead end"
        longer = [(*texts[row], token) for row, token in open_ways.nonzero().tolist()]
        over |= {text[:-1] for text in longer if text[-1] == END}
        texts = [text for text in longer if text[-1] != END]
        if not texts:
            return over
    raise AssertionError("an output is longer than the limit")


@pytest.mark.parametrize(
    ("words", "limit", "chain"),
    [(1, 4, 6), (1, 5, 6), (1, 8, 6), (1, 12, 2), (2, 5, 6), (2, 9, 6), (2, 10, 1), (3, 6, 6), (3, 10, 2), (4, 9, 3)],
)
def test_exactly_the_trees_over_the_words_can_be_written(words: int, limit: int, chain: int) -> None:
    wish = tree_wish(words, chain)
    wanted = {tree for tree in trees_over(words, limit - 1) if longest_run(tree) <= chain}
    assert written_under(TreeRule([wish], [limit], END), limit) == wanted


@pytest.mark.parametrize("words", range(1, 12))
def test_the_smallest_limit_is_enough_and_one_less_is_not(words: int) -> None:
    wish = tree_wish(words)
    assert not any(trees_over(words, wish.smallest_limit - 2))
    table = Table(1, SIZE, words)
    ((one, *_),) = found_by(table, WAYS["beams"], [wish], [wish.smallest_limit])
    assert_tree(one, wish, wish.smallest_limit)
    assert len(one.tokens) + 1 == wish.smallest_limit
    with pytest.raises(
        UserError,
        match=f"over {words} words needs at least {words + 3} symbols.* and the output may have {words + 2};",
    ):
        make_chooser(DecodeConfig(), [words + 2], END, wishes=[Wish(tree=wish)])


def test_no_tree_is_longer_than_the_largest_limit() -> None:
    for words, chain in itertools.product((1, 2, 3), (1, 2)):
        wish = tree_wish(words, chain)
        table = Table(1, SIZE, 0)
        table.scores[..., OPEN] += 50.0
        ((one,),) = found_by(table, WAYS["greedy"], [wish], [1000])
        assert len(one.tokens) + 1 == wish.largest_limit


class Gold:
    """A model whose likeliest symbol at every step is the gold tree's, whatever was written."""

    def __init__(self, texts: Sequence[Sequence[int]], seed: int) -> None:
        chance = torch.Generator().manual_seed(seed)
        longest = max(map(len, texts)) + 2
        self.scores = torch.randn(len(texts), longest, SIZE, generator=chance, dtype=torch.float64)
        for row, text in enumerate(texts):
            for at in range(longest):
                self.scores[row, at, text[at] if at < len(text) else END] += 12.0

    def start(self) -> tuple[Tensor, Tensor]:
        rows = len(self.scores)
        return torch.arange(rows), torch.zeros(rows, dtype=torch.long)

    def step(self, tokens: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        row, at = state
        return self.scores[row, at.clamp(max=self.scores.shape[1] - 1)][:, None], (row, at + 1)

    def reorder(self, state: tuple[Tensor, Tensor], rows: Tensor) -> tuple[Tensor, Tensor]:
        return state[0][rows], state[1][rows]


GOLD = [
    "(S (NP (DT the) (NN cat)) (NN slept))",
    "(NP (NN rain))",
    "(S (S (NP (NP (DT a) (NN b)) (NN c))) (NP (NP (NN d))))",
]


@pytest.mark.parametrize("way", [WAYS["greedy"], WAYS["beams"], WAYS["plain sums"]], ids=["greedy", "beams", "sums"])
@pytest.mark.parametrize("seed", range(5))
def test_a_model_that_knows_the_tree_is_left_alone(way: dict, seed: int) -> None:
    trees = [Tree.of(text) for text in GOLD]
    model = Gold([SYMBOLS.encode_tree(tree) for tree in trees], seed)
    limits = [len(SYMBOLS.encode_tree(tree)) + 1 for tree in trees]
    ruled = found_by(model, way, [tree_wish(len(tree.words())) for tree in trees], limits)
    free = found_by(model, way, [None] * 3, limits)
    for tree, (mine, *_), (theirs, *_) in zip(trees, ruled, free, strict=True):
        assert mine == theirs
        assert SYMBOLS.decode_tree(mine.tokens, tree.words()) == tree


def test_rows_without_a_wish_are_free_beside_rows_with_one() -> None:
    for way in WAYS.values():
        table = Table(3, SIZE, 8)
        mixed = found_by(table, way, [None, tree_wish(3), None], [9, 12, 5])
        for row, limit in ((0, 9), (2, 5)):
            free = found_by(table, way, [None] * 3, [limit] * 3)[row]
            if "sample" not in way:
                assert [one.tokens for one in mixed[row]] == [one.tokens for one in free]
        for one in mixed[1]:
            assert_tree(one, tree_wish(3), 12)


def test_the_rule_never_waits_for_the_device() -> None:
    """On the device without numbers whatever asks for one fails."""
    rule = TreeRule([tree_wish(3), None], [9, 9], END, device="meta")
    written = Written(
        torch.zeros(8, 64, dtype=torch.long, device="meta"), torch.zeros(8, dtype=torch.long, device="meta")
    )
    scores = torch.zeros(8, SIZE, device="meta")
    assert rule.hide(scores, written).shape == scores.shape
    assert rule.hide(torch.zeros(8, SIZE + 5, device="meta"), written).shape == (8, SIZE + 5)


def test_a_wish_for_a_tree_becomes_a_rule_that_can_be_recorded() -> None:
    chooser = make_chooser(DecodeConfig(beams=1), [9], END, wishes=[Wish(tree=tree_wish(3))])
    plain = make_chooser(DecodeConfig(beams=1), [9], END)
    other = make_chooser(DecodeConfig(beams=1), [9], END, wishes=[Wish(tree=TreeWish(3, 3, 5, 9))])
    assert [type(rule) for rule in chooser.rules] == [TreeRule]
    assert len(chooser.held()) == len(plain.held()) + 3
    assert len({each.recorded_as() for each in (chooser, plain, other)}) == 3


def stack() -> StackConfig:
    return StackConfig(layers=1, attention=HeadsConfig(heads=2), feed_forward=FeedForwardConfig(hidden=16), dropout=0.0)


@pytest.fixture(scope="module")
def parser() -> EncoderDecoder:
    torch.manual_seed(4)
    tokens = TokensConfig(padding=0, start=1, end=END)
    config = EncoderDecoderConfig(vocabulary=23, width=8, encoder=stack(), decoder=stack(), tokens=tokens)
    model = config.build()
    with torch.no_grad():
        model.vocabulary.weight *= 2.5
    return model.double().eval()


def requests(count: int, seed: int, ways: Sequence[dict]) -> list[Request]:
    chance = random.Random(seed)
    made = []
    for number in range(count):
        words = chance.choice([1, 2, 5, 9, 30])
        source = tuple(chance.randrange(3, 23) for _ in range(words))
        tree = None if chance.random() < 0.2 else tree_wish(words, chance.choice([2, 6]))
        limit = words + chance.choice([3, 4, 20, 80])
        made.append(Request(source, limit, DecodeConfig(**chance.choice(ways)), Wish(seed=number, tree=tree)))
    return made


def assert_trees(asked: Sequence[Request], found: Sequence[list[Hypothesis]]) -> None:
    for request, hypotheses in zip(asked, found, strict=True):
        assert hypotheses
        for one in hypotheses:
            if request.wish.tree is not None:
                assert_tree(one, request.wish.tree, request.limit)


def assert_same(found: Sequence[list[Hypothesis]], wanted: Sequence[list[Hypothesis]]) -> None:
    for mine, theirs in zip(found, wanted, strict=True):
        assert [one.tokens for one in mine] == [one.tokens for one in theirs]
        assert [one.score for one in mine] == pytest.approx([one.score for one in theirs])


def test_engine_and_offline_search_write_trees_and_the_same_ones(parser: EncoderDecoder) -> None:
    asked = requests(60, 1, list(WAYS.values()))
    alone = [search_batch(parser, [request], END)[0] for request in asked]
    assert_trees(asked, alone)
    assert_same(search_all(parser, asked, END, batch_tokens=60), alone)
    engine = Engine(parser, END, rows=12)
    tickets = [engine.submit(request) for request in asked[:20]]
    for request in asked[20:]:  # the others come while the first are under way
        engine.work()
        tickets.append(engine.submit(request))
    engine.run()
    assert_same([ticket.result(0) for ticket in tickets], alone)


def test_trees_in_different_symbols_are_searched_apart(parser: EncoderDecoder) -> None:
    other = TreeSymbols((*SYMBOLS.symbols[:5], "(VP", *SYMBOLS.symbols[5:]))
    first = Request((5, 6), 30, DecodeConfig(beams=2), Wish(tree=tree_wish(2)))
    second = replace(first, wish=Wish(tree=TreeWish.over(2, other)))
    third = replace(first, wish=Wish(tree=tree_wish(7)))
    assert len({first.lane, second.lane, third.lane}) == 2
    found = search_all(parser, [first, second, third], END, batch_tokens=100)
    other.decode_tree(found[1][0].tokens, ["a", "b"])
    assert_trees([first, third], [found[0], found[2]])
    with pytest.raises(UserError, match="written in the same symbols; found 2 kinds"):
        search_batch(parser, [first, second], END)


def test_an_engine_tells_who_asked_for_a_tree_that_cannot_be(parser: EncoderDecoder) -> None:
    engine = Engine(parser, END, rows=8, longest=20)
    wish = Wish(tree=tree_wish(30))
    bad = engine.submit(Request((5,) * 30, 200, DecodeConfig(beams=2), wish))
    good = engine.submit(Request((5,) * 4, 200, DecodeConfig(beams=2), Wish(tree=tree_wish(4))))
    engine.run()
    assert_trees([good.request], [good.result(0)])
    with pytest.raises(
        UserError, match="over 30 words needs at least 33 symbols, its end included, and the output may"
    ):
        bad.result(0)


@pytest.mark.parametrize("way", [WAYS["greedy"], WAYS["beams"], WAYS["drawn"]], ids=["greedy", "beams", "drawn"])
def test_recorded_turns_write_the_same_trees(way: dict) -> None:
    pytest.importorskip("triton")
    from tests.decode.test_replay import fast_form, model, sources

    plain = model()
    fast = fast_form(plain)
    asked = [
        Request(source, len(source) + 3 + 9 * (number % 5), DecodeConfig(**way), Wish(tree=tree_wish(len(source))))
        for number, source in enumerate(sources(7))
    ]
    wanted = search_batch(plain, asked, END)
    assert_trees(asked, wanted)
    for _ in range(2):
        assert [[one.tokens for one in each] for each in search_batch(fast, asked, END)] == [
            [one.tokens for one in each] for each in wanted
        ]
    engine = Engine(fast, END, rows=8)
    tickets = [engine.submit(request) for request in asked]
    engine.run()
    assert_trees(asked, [ticket.result(0) for ticket in tickets])


@pytest.mark.parametrize("wish", [Wish(prefix=(3,)), Wish(forbidden=((4,),)), Wish(required=((6,),))], ids=str)
def test_what_a_tree_contains_cannot_be_given_as_well(wish: Wish) -> None:
    with pytest.raises(UserError, match="begins with or contains cannot be given"):
        make_chooser(DecodeConfig(), [20], END, wishes=[replace(wish, tree=tree_wish(3))])


def test_trees_go_without_a_shortlist(parser: EncoderDecoder) -> None:
    shortlist = Shortlist(torch.arange(8), torch.full((23, 1), -1), torch.zeros(2, 32))
    asked = [Request((5, 6), 30, DecodeConfig(beams=2), Wish(tree=tree_wish(2)))]
    with pytest.raises(UserError, match="leave out the shortlist"):
        search_batch_among(parser, asked, END, shortlist)


def test_impossible_trees_are_refused() -> None:
    with pytest.raises(UserError, match="at least one word; found 0"):
        tree_wish(0)
    with pytest.raises(UserError, match="at least one constituent in a row; found 0"):
        tree_wish(3, 0)
    with pytest.raises(UserError, match="each needs at least one"):
        TreeWish(3, 5, 5, 8)
    with pytest.raises(UserError, match="The end, 6, must come before the first symbol of trees, 3"):
        TreeRule([tree_wish(3)], [9], 6)
    with pytest.raises(UserError, match="found 0 kinds"):
        TreeRule([None], [9], END)
