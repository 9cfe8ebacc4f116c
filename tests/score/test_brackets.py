"""Brackets are counted as EVALB counts them: hand-worked cases, and a second count made in another way.

Where the numbers come from: those of single sentences were worked out by hand from EVALB's rules (evalb.c with
COLLINS.prm; the reasoning stands beside each). `counted_again` follows EVALB's own procedure over the text of two lines
(numbering words and brackets as they are scanned, marking what is left out, then trying every pair), and shares no code
with what is tested. Beyond this file, the 1,709 trees of GUM's and the Penn sample's test parts with random mistakes
were held against a count over NLTK's trees, and those 1,438 of them that PYEVALB 0.1.3 can count alike (it takes equal
brackets for one, and wants one constituent below the root) against PYEVALB, punctuation and root taken out before. All
agreed.
"""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard import UserError
from regard.data.trees import Leaf, Tree
from regard.score import BracketScore, score_brackets
from regard.score.brackets import brackets, score_tree

GOLD = "(TOP (S (NP (DT the) (NN cat)) (VP (VBD ate) (NP (DT a) (NN mouse)) (PP (IN with) (NP (NNS teeth)))) (. .)))"


def score(predicted: str | None, gold: str) -> BracketScore:
    return score_tree(None if predicted is None else Tree.of(predicted), Tree.of(gold))


def test_a_tree_against_itself_is_perfect() -> None:
    found = score(GOLD, GOLD)
    assert (found.matched, found.predicted, found.gold, found.crossing) == (6, 6, 6, 0)
    assert (found.precision, found.recall, found.f1, found.exact, found.tagging) == (100, 100, 100, 100, 100)
    assert (found.words, found.sentences) == (7, 1)


def test_a_phrase_attached_elsewhere() -> None:
    """`with teeth` put below `a mouse`: all six brackets are there, and NP over `a mouse with teeth` is one more."""
    inside = "(NP (NP (DT a) (NN mouse)) (PP (IN with) (NP (NN teeth))))"
    found = score(f"(TOP (S (NP (DT the) (NN cat)) (VP (VBD ate) {inside}) (. .)))", GOLD)
    assert (found.matched, found.predicted, found.gold, found.crossing) == (6, 7, 6, 0)
    assert found.precision == pytest.approx(600 / 7)
    assert found.recall == 100
    assert found.f1 == pytest.approx(1200 / 13)
    assert (found.exact, found.tags, found.words) == (0, 6, 7)


def test_brackets_that_overlap_cross() -> None:
    """Gold: NP over words 0–2, VP over 2–4. Predicted: X over 1–3 and Y over 0–3, each overlaps one of them in part."""
    gold = "(S (NP (A a) (B b)) (VP (C c) (D d)))"
    found = score("(S (Y (A a) (X (B b) (C c))) (D d))", gold)
    assert (found.matched, found.predicted, found.gold, found.crossing) == (1, 3, 3, 2)
    assert found.uncrossed == 0
    assert score("(S (A a) (B b) (C c) (D d))", gold).crossing == 0


def test_the_root_and_empty_brackets_are_not_counted() -> None:
    gold = "(TOP (S (NP-SBJ (NN rain)) (VP (VBZ falls)) (NP (-NONE- *))))"
    for root in ("TOP", "ROOT", "S1", "VROOT", ""):
        found = score(f"({root} (S (NP (NN rain)) (VP (VBZ falls))))", gold)
        assert (found.matched, found.predicted, found.gold) == (3, 3, 3)


def test_punctuation_is_taken_out_of_spans() -> None:
    """Wherever commas and the stop hang, the same words are spanned; a phrase of nothing but a dash is none."""
    gold = "(S (NP (NN rain)) (, ,) (VP (VBZ falls)) (: --) (. .))"
    found = score("(S (NP (NN rain) (, ,)) (VP (VBZ falls) (PRN (: --)) (. .)))", gold)
    assert (found.matched, found.predicted, found.gold, found.words, found.exact) == (3, 3, 3, 2, 100)


def test_functions_are_cut_and_two_labels_are_equal() -> None:
    found = score("(S-1 (PRT=2 (RB up)) (NP (NN a)))", "(S (ADVP-LOC (RB up)) (NP-SBJ (NN a)))")
    assert (found.matched, found.exact) == (3, 100)


def test_a_chain_needs_each_bracket_once() -> None:
    """NP over NP over one word twice in gold: one predicted finds one of the two, three find two."""
    gold = "(TOP (NP (NP (NN rain))))"
    one, three = score("(TOP (NP (NN rain)))", gold), score("(TOP (NP (NP (NP (NN rain)))))", gold)
    assert (one.matched, one.predicted, one.gold) == (1, 1, 2)
    assert (three.matched, three.predicted, three.gold) == (2, 3, 2)
    assert one.exact == three.exact == 0


def test_the_treebanks_tags_say_what_is_punctuation() -> None:
    """EVALB would leave this sentence out for the tag of the stop, and every sentence of a parser without tags."""
    gold = "(S (NP (NN rain)) (VP (VBZ falls)) (. .))"
    for predicted in ("(S (NP (NN rain)) (VP (VBZ falls)) (NN .))", "(S (NP (XX rain)) (VP (XX falls)) (XX .))"):
        found = score(predicted, gold)
        assert (found.matched, found.predicted, found.gold, found.words) == (3, 3, 3, 2)


def test_counts_are_summed_before_they_are_divided() -> None:
    """A short sentence all wrong and a long one all right: 6 of 7, not the mean of 0 and 1."""
    short = Tree.of("(TOP (NP (NN rain)))")
    total = score_brackets([Tree.of("(TOP (VP (NN rain)))"), Tree.of(GOLD)], [short, Tree.of(GOLD)])
    assert total.f1 == pytest.approx(100 * 6 / 7)
    assert (total.exact, total.sentences, total.words) == (50, 2, 8)
    assert total == score_tree(Tree.of("(VP (NN rain))"), short) + score(GOLD, GOLD)


def test_a_sentence_without_a_tree_misses_all_its_brackets() -> None:
    total = score_brackets([None, Tree.of(GOLD)], [Tree.of(GOLD)] * 2)
    assert (total.precision, total.recall, total.exact, total.failed, total.tagging) == (100, 50, 50, 1, 50)


def test_a_sentence_of_punctuation_is_left_out() -> None:
    assert score("(TOP (X (. .)))", "(TOP (NP (: --)))".replace("--", ".")) == BracketScore()
    nothing = score_brackets([], [])
    assert (nothing.precision, nothing.recall, nothing.f1, nothing.exact, nothing.tagging) == (0, 0, 0, 0, 0)


def test_trees_over_other_words_cannot_be_compared() -> None:
    with pytest.raises(
        UserError, match="Sentence 2: word 2 is 'dog' in the predicted tree and 'cat' in the treebank's"
    ):
        score_brackets([Tree.of(GOLD), Tree.of(GOLD.replace("cat", "dog"))], [Tree.of(GOLD)] * 2)
    with pytest.raises(UserError, match="Sentence 1: the predicted tree has 6 words and the treebank's 7"):
        score_brackets([Tree.of("(NP (A a) (A b) (A c) (A d) (A e) (A f))")], [Tree.of(GOLD.replace(" (. .)", ""))])
    with pytest.raises(UserError, match="There are 1 predicted trees and 2 of the treebank"):
        score_brackets([Tree.of(GOLD)], [Tree.of(GOLD)] * 2)


def test_brackets_have_labels_and_spans() -> None:
    tree = Tree.of("(TOP (S (NP (DT the) (, ,) (NN cat)) (VP (-NONE- *) (VBD slept))))")
    assert brackets(tree, [True, False, True, True]) == [("NP", 0, 2), ("VP", 2, 3), ("S", 0, 3)]


def counted_again(predicted: str, gold: str) -> tuple[int, ...]:
    """EVALB's way: scan both lines, mark brackets that are left out, and pair the rest one by one."""
    deleted = {"TOP", "-NONE-", ",", ":", "``", "''", "."}

    def scan(line: str) -> tuple[list[tuple[str, str]], list[list]]:
        tokens = line.replace("(", " ( ").replace(")", " ) ").split()
        words, found, open_ones, at = [], [], [], 0
        while at < len(tokens):
            if tokens[at] == "(" and tokens[at + 3] == ")":
                if tokens[at + 1] not in deleted:
                    words.append((tokens[at + 1], tokens[at + 2]))
                at += 4
            elif tokens[at] == "(":
                open_ones.append(len(found))
                found.append([tokens[at + 1], len(words), -1])
                at += 2
            else:
                found[open_ones.pop()][2] = len(words)
                at += 1
        kept = []
        for label, begin, end in found:
            for sign in "-=":
                label = label.split(sign)[0]
            if begin != end and label not in deleted:
                kept.append(["ADVP" if label == "PRT" else label, begin, end])
        return words, kept

    (words, mine), (right, theirs) = scan(predicted), scan(gold)
    assert [word for _, word in words] == [word for _, word in right]
    used, matched, crossing = set(), 0, 0
    for bracket in theirs:
        for number, other in enumerate(mine):
            if number not in used and bracket == other:
                used.add(number)
                matched += 1
                break
    for _, begin, end in mine:
        for _, first, last in theirs:
            if first < begin < last < end or begin < first < end < last:
                crossing += 1
                break
    return matched, len(mine), len(theirs), crossing, len(right), sum(a == b for a, b in zip(words, right, strict=True))


def made_tree(chance: random.Random, leaves: list[Leaf]) -> Tree:
    """Some tree over these leaves."""
    parts: list[Tree | Leaf] = list(leaves)
    for _ in range(chance.randrange(2 * len(leaves) + 1)):
        begin = chance.randrange(len(parts))
        end = min(len(parts), begin + chance.choice([1, 2, 2, 3, 4]))
        parts[begin:end] = [
            Tree(chance.choice(["S", "NP", "NP-SBJ", "VP", "ADVP", "PRT", "NP=1"]), tuple(parts[begin:end]))
        ]
    return Tree("TOP", tuple(parts))


@settings(max_examples=300)
@given(seed=st.integers(0, 10**9), size=st.integers(1, 12))
def test_a_second_count_made_in_another_way_agrees(seed: int, size: int) -> None:
    chance = random.Random(seed)
    leaves = [Leaf(chance.choice(["NN", "VB", "DT", ",", ".", "``"]), f"w{number}") for number in range(size)]
    others = [Leaf("JJ", leaf.word) if leaf.tag in ("NN", "VB") and chance.random() < 0.3 else leaf for leaf in leaves]
    gold, predicted = made_tree(chance, leaves), made_tree(chance, others)
    found = score_tree(predicted, gold)
    counts = (found.matched, found.predicted, found.gold, found.crossing, found.words, found.tags)
    assert counts == counted_again(str(predicted), str(gold))
    assert bool(found.exact_sentences) == (found.words > 0 and len(set(counts[:3])) == 1)
