"""Syntactic governors: from trees by head rules, from CoNLL-U, and heads that attend to them."""

from pathlib import Path

import pytest
import torch

from regard import UserError
from regard.data.trees.tree import Tree
from regard.look.analysis.head_roles.recording import LayerAttention, RecordedExample
from regard.look.analysis.head_roles.syntax import SyntaxCounts, syntax_example
from regard.look.analysis.head_roles.treebank import GovernedSentence, governors_of, read_conllu, spaced_text
from tests.look.support import autoregressive_model

TREE = (
    "(TOP (S (NP (DT The) (JJ old) (NN cat)) (VP (VBZ does) (RB n't) (VP (VB eat) (NP (NN fish)) "
    "(PP (IN in) (NP (NNP May))))) (. .)))"
)


def test_heads_of_constituents_govern_their_siblings() -> None:
    sentence = governors_of(Tree.parse(TREE))
    words = sentence.words
    found = {
        word: ("" if governor < 0 else words[governor], relation)
        for word, governor, relation in zip(words, sentence.governors, sentence.relations, strict=True)
    }
    assert found == {
        "The": ("cat", "DT in NP"),
        "old": ("cat", "JJ in NP"),
        "cat": ("does", "NP in S"),
        "does": ("", ""),
        "n't": ("does", "RB in VP"),
        "eat": ("does", "VP in VP"),
        "fish": ("eat", "NP in VP"),
        "in": ("eat", "PP in VP"),
        "May": ("in", "NP in PP"),
        ".": ("does", ""),
    }
    assert spaced_text(sentence, tokenized=False)[0] == "The old cat doesn't eat fish in May."
    text, spans = spaced_text(sentence, tokenized=True)
    assert [text[first:end] for first, end in spans] == text.split() == list(words)


def test_conllu_is_read(tmp_path: Path) -> None:
    rows = [
        "# text = I don't sleep.",
        *("1 I _ _ _ _ 4 nsubj:pass _ _", "2-3 don't _ _ _ _ _ _ _ _", "2 do _ _ _ _ 4 aux _ _"),
        *("3 n't _ _ _ _ 4 advmod _ _", "4 sleep _ _ _ _ 0 root _ SpaceAfter=No", "4.1 x _ _ _ _ _ _ _ _"),
        "5 . _ _ _ _ 4 punct _ _",
    ]
    path = tmp_path / "en.conllu"
    path.write_text("\n".join(row if row.startswith("#") else row.replace(" ", "\t") for row in rows))
    (sentence,) = read_conllu(path)
    assert sentence.governors == [3, 3, 3, -1, 3]
    assert sentence.relations == ["nsubj", "aux", "advmod", "", ""]
    assert spaced_text(sentence, tokenized=False)[0] == "I don't sleep."
    path.write_text("1\tno\tcolumns\n")
    with pytest.raises(UserError, match="line 1: found 3 columns; a CoNLL-U file has 10"):
        list(read_conllu(path))


def test_heads_that_attend_to_governors_are_counted() -> None:
    """Four words, the second of two tokens, and ⟨eos⟩. Head 0 attends to the governor, head 1 to the next word, and
    head 2 mostly to the governor's tokens, but more to ⟨eos⟩ than to it."""
    sentence = GovernedSentence(["a", "bc", "d", "e"], [2, 2, -1, 0], ["far", "near", "", "far"])
    positions = [[0], [1, 2], [3], [4]]
    weights = torch.zeros(3, 6, 6)
    for word, tokens in enumerate(positions):
        for token in tokens:
            weights[0, token, positions[sentence.governors[word]][0]] = 1
            weights[1, token, min(tokens[-1] + 1, 5)] = 1
            weights[2, token, [3, 5]] = torch.tensor([0.4, 0.6])
    visible = torch.ones(6, 6, dtype=torch.bool)
    layer = LayerAttention(weights, visible, weights.amax(dim=-1), visible.sum(dim=-1))
    counted = SyntaxCounts()
    for _ in range(10):
        counted.add(RecordedExample([], [], {("encoder", 0): layer}), sentence, positions)
    assert counted.relations() == {"governor": 30, "far": 20}
    scores = [counted.score("governor", 0, head) for head in range(3)]
    assert [score.value for score in scores] == pytest.approx([1, 1 / 3, 0])
    assert [score.tag for score in scores] == [True, False, False]
    assert scores[0].baseline.value == pytest.approx(1 / 3)  # one governor each at the distances 2, 1 and −3
    assert counted.score("far", 0, 0).baseline.value == pytest.approx(1 / 2)
    assert counted.score("near", 0, 1).tag is False  # too few


def test_words_have_the_tokens_of_their_characters() -> None:
    traced_model = autoregressive_model()
    sentence = GovernedSentence(["the", "mouse", ",", "slept", "?"], [1, -1, -1, -1, -1], [""] * 5)
    found = syntax_example(traced_model, sentence)
    assert found is not None
    example, positions = found
    tokens, _ = traced_model.example_tokens(example)
    spelled = ["".join(tokens[position].text for position in each) for each in positions]
    assert spelled == list(sentence.words)
    assert [position for each in positions for position in each] == list(range(len(tokens) - 1))
