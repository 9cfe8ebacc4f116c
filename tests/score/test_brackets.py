"""Brackets are counted as EVALB counts them: cases worked out by hand, and an independent implementation.

The expected numbers of single sentences follow from EVALB's rules (evalb.c with COLLINS.prm), as each test explains.
`evalb_counts` follows EVALB's procedure on the text of two lines (number words and brackets while scanning, mark
deleted brackets, then try every pair) and shares no code with the tested implementation. Outside this file, the 1,709
trees of the test sets of GUM and the Penn sample, with random errors, were compared with a count over NLTK's trees, and
1,438 of them also with PYEVALB 0.1.3, after removing punctuation and roots (it merges equal brackets and expects one
constituent below the root). All counts agreed.
"""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard import UserError
from regard.data.trees.tree import Leaf, Tree
from regard.score import BracketScore, score_brackets
from regard.score.brackets import brackets, score_tree

GOLD = "(TOP (S (NP (DT the) (NN cat)) (VP (VBD ate) (NP (DT a) (NN mouse)) (PP (IN with) (NP (NNS teeth)))) (. .)))"


def score(predicted: str | None, gold: str) -> BracketScore:
    return score_tree(None if predicted is None else Tree.parse(predicted), Tree.parse(gold))


def test_identical_trees_score_100() -> None:
    result = score(GOLD, GOLD)
    assert (result.matched, result.predicted, result.gold, result.crossing) == (6, 6, 6, 0)
    assert (result.precision, result.recall, result.f1, result.exact, result.tagging) == (100, 100, 100, 100, 100)
    assert (result.words, result.sentences) == (7, 1)


def test_attachment_error() -> None:
    """`with teeth` attached to `a mouse`: all six brackets match, and the NP over `a mouse with teeth` is extra."""
    inside = "(NP (NP (DT a) (NN mouse)) (PP (IN with) (NP (NN teeth))))"
    result = score(f"(TOP (S (NP (DT the) (NN cat)) (VP (VBD ate) {inside}) (. .)))", GOLD)
    assert (result.matched, result.predicted, result.gold, result.crossing) == (6, 7, 6, 0)
    assert result.precision == pytest.approx(600 / 7)
    assert result.recall == 100
    assert result.f1 == pytest.approx(1200 / 13)
    assert (result.exact, result.tags, result.words) == (0, 6, 7)


def test_crossing_brackets() -> None:
    """Gold: NP over words 0–2, VP over 2–4. Predicted: X over 1–3 and Y over 0–3, each crosses one of them."""
    gold = "(S (NP (A a) (B b)) (VP (C c) (D d)))"
    result = score("(S (Y (A a) (X (B b) (C c))) (D d))", gold)
    assert (result.matched, result.predicted, result.gold, result.crossing) == (1, 3, 3, 2)
    assert result.uncrossed == 0
    assert score("(S (A a) (B b) (C c) (D d))", gold).crossing == 0


def test_root_and_empty_brackets_are_ignored() -> None:
    gold = "(TOP (S (NP-SBJ (NN rain)) (VP (VBZ falls)) (NP (-NONE- *))))"
    for root in ("TOP", "ROOT", "S1", "VROOT", ""):
        result = score(f"({root} (S (NP (NN rain)) (VP (VBZ falls))))", gold)
        assert (result.matched, result.predicted, result.gold) == (3, 3, 3)


def test_punctuation_is_removed_from_spans() -> None:
    """Spans do not depend on where commas and periods are attached; a phrase of only a dash does not count."""
    gold = "(S (NP (NN rain)) (, ,) (VP (VBZ falls)) (: --) (. .))"
    result = score("(S (NP (NN rain) (, ,)) (VP (VBZ falls) (PRN (: --)) (. .)))", gold)
    assert (result.matched, result.predicted, result.gold, result.words, result.exact) == (3, 3, 3, 2, 100)


def test_function_tags_are_stripped_and_prt_equals_advp() -> None:
    result = score("(S-1 (PRT=2 (RB up)) (NP (NN a)))", "(S (ADVP-LOC (RB up)) (NP-SBJ (NN a)))")
    assert (result.matched, result.exact) == (3, 100)


def test_unary_chain_is_matched_one_to_one() -> None:
    """Two NPs over the same word in gold: one predicted NP matches one of them, three match two."""
    gold = "(TOP (NP (NP (NN rain))))"
    one, three = score("(TOP (NP (NN rain)))", gold), score("(TOP (NP (NP (NP (NN rain)))))", gold)
    assert (one.matched, one.predicted, one.gold) == (1, 1, 2)
    assert (three.matched, three.predicted, three.gold) == (2, 3, 2)
    assert one.exact == three.exact == 0


def test_gold_tags_determine_punctuation() -> None:
    """EVALB would skip this sentence for the tag of its period, and every sentence of a parser without tags."""
    gold = "(S (NP (NN rain)) (VP (VBZ falls)) (. .))"
    for predicted in ("(S (NP (NN rain)) (VP (VBZ falls)) (NN .))", "(S (NP (XX rain)) (VP (XX falls)) (XX .))"):
        result = score(predicted, gold)
        assert (result.matched, result.predicted, result.gold, result.words) == (3, 3, 3, 2)


def test_counts_are_summed_over_sentences() -> None:
    """A short sentence with no match and a long one with all: 6 of 7, not the mean of 0 and 1."""
    short = Tree.parse("(TOP (NP (NN rain)))")
    total = score_brackets([Tree.parse("(TOP (VP (NN rain)))"), Tree.parse(GOLD)], [short, Tree.parse(GOLD)])
    assert total.f1 == pytest.approx(100 * 6 / 7)
    assert (total.exact, total.sentences, total.words) == (50, 2, 8)
    assert total == score_tree(Tree.parse("(VP (NN rain))"), short) + score(GOLD, GOLD)


def test_missing_tree_misses_all_brackets() -> None:
    total = score_brackets([None, Tree.parse(GOLD)], [Tree.parse(GOLD)] * 2)
    assert (total.precision, total.recall, total.exact, total.failed, total.tagging) == (100, 50, 50, 1, 50)


def test_sentence_of_punctuation_is_ignored() -> None:
    assert score("(TOP (X (. .)))", "(TOP (NP (: --)))".replace("--", ".")) == BracketScore()
    nothing = score_brackets([], [])
    assert (nothing.precision, nothing.recall, nothing.f1, nothing.exact, nothing.tagging) == (0, 0, 0, 0, 0)


def test_trees_over_different_words_are_refused() -> None:
    with pytest.raises(UserError, match="Sentence 2: word 2 is 'dog' in the predicted tree and 'cat' in the gold tree"):
        score_brackets([Tree.parse(GOLD), Tree.parse(GOLD.replace("cat", "dog"))], [Tree.parse(GOLD)] * 2)
    with pytest.raises(UserError, match="Sentence 1: the predicted tree has 6 words and the gold tree 7"):
        score_brackets(
            [Tree.parse("(NP (A a) (A b) (A c) (A d) (A e) (A f))")], [Tree.parse(GOLD.replace(" (. .)", ""))]
        )
    with pytest.raises(UserError, match="There are 1 predicted trees and 2 gold trees"):
        score_brackets([Tree.parse(GOLD)], [Tree.parse(GOLD)] * 2)


def test_brackets_have_labels_and_spans() -> None:
    tree = Tree.parse("(TOP (S (NP (DT the) (, ,) (NN cat)) (VP (-NONE- *) (VBD slept))))")
    assert brackets(tree, [True, False, True, True]) == [("NP", 0, 2), ("VP", 2, 3), ("S", 0, 3)]


def evalb_counts(predicted: str, gold: str) -> tuple[int, ...]:
    """EVALB's procedure: scan both lines, drop deleted brackets, and match the rest one by one."""
    deleted = {"TOP", "-NONE-", ",", ":", "``", "''", "."}

    def scan(line: str) -> tuple[list[tuple[str, str]], list[list]]:
        tokens = line.replace("(", " ( ").replace(")", " ) ").split()
        words, spans, open_spans, position = [], [], [], 0
        while position < len(tokens):
            if tokens[position] == "(" and tokens[position + 3] == ")":
                if tokens[position + 1] not in deleted:
                    words.append((tokens[position + 1], tokens[position + 2]))
                position += 4
            elif tokens[position] == "(":
                open_spans.append(len(spans))
                spans.append([tokens[position + 1], len(words), -1])
                position += 2
            else:
                spans[open_spans.pop()][2] = len(words)
                position += 1
        remaining = []
        for label, begin, end in spans:
            for sign in "-=":
                label = label.split(sign)[0]
            if begin != end and label not in deleted:
                remaining.append(["ADVP" if label == "PRT" else label, begin, end])
        return words, remaining

    (words, predicted_spans), (gold_words, gold_spans) = scan(predicted), scan(gold)
    assert [word for _, word in words] == [word for _, word in gold_words]
    used, matched, crossing = set(), 0, 0
    for bracket in gold_spans:
        for number, other in enumerate(predicted_spans):
            if number not in used and bracket == other:
                used.add(number)
                matched += 1
                break
    for _, begin, end in predicted_spans:
        for _, first, last in gold_spans:
            if first < begin < last < end or begin < first < end < last:
                crossing += 1
                break
    tags = sum(a == b for a, b in zip(words, gold_words, strict=True))
    return matched, len(predicted_spans), len(gold_spans), crossing, len(gold_words), tags


def random_tree(rng: random.Random, leaves: list[Leaf]) -> Tree:
    """A random tree over these leaves."""
    parts: list[Tree | Leaf] = list(leaves)
    for _ in range(rng.randrange(2 * len(leaves) + 1)):
        begin = rng.randrange(len(parts))
        end = min(len(parts), begin + rng.choice([1, 2, 2, 3, 4]))
        parts[begin:end] = [
            Tree(rng.choice(["S", "NP", "NP-SBJ", "VP", "ADVP", "PRT", "NP=1"]), tuple(parts[begin:end]))
        ]
    return Tree("TOP", tuple(parts))


@settings(max_examples=300)
@given(seed=st.integers(0, 10**9), size=st.integers(1, 12))
def test_counts_equal_an_independent_implementation(seed: int, size: int) -> None:
    rng = random.Random(seed)
    leaves = [Leaf(rng.choice(["NN", "VB", "DT", ",", ".", "``"]), f"w{number}") for number in range(size)]
    others = [Leaf("JJ", leaf.word) if leaf.tag in ("NN", "VB") and rng.random() < 0.3 else leaf for leaf in leaves]
    gold, predicted = random_tree(rng, leaves), random_tree(rng, others)
    result = score_tree(predicted, gold)
    counts = (result.matched, result.predicted, result.gold, result.crossing, result.words, result.tags)
    assert counts == evalb_counts(str(predicted), str(gold))
    assert bool(result.exact_sentences) == (result.words > 0 and len(set(counts[:3])) == 1)
