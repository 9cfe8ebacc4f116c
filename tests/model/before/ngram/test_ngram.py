"""n-gram models against a slow computation from the definitions, and in and out of ARPA files.

KenLM's own numbers are compared in benchmarks/kenlm.py, whose text may not be redistributed.
"""

import copy
import math
import random
from collections import Counter, defaultdict
from itertools import pairwise

import numpy as np
import pytest
import torch

import regard
from regard.config import ConfigError
from regard.decode import DecodeConfig, Request
from regard.decode.batch import score_all, search_batch
from regard.errors import UserError
from regard.model import SpecialTokensConfig
from regard.model.before.ngram.arpa import read_arpa, write_arpa
from regard.model.before.ngram.model import NgramConfig, estimate_ngrams
from regard.run import save_model
from tests.model.small_models import EXACT

WORDS = ["<pad>", "<s>", "</s>", "<unk>", "the", "a", "old", "little", "dog", "cat", "bird", "sees", "hears", "sleeps"]
PAD, BOS, EOS, UNK = range(4)
SPECIAL = SpecialTokensConfig(pad=PAD, bos=BOS, eos=EOS)
FALLBACK = {1: 0.5, 2: 1.0, 3: 1.5}


def sentences(count: int = 60, seed: int = 1) -> list[list[str]]:
    """Sentences of a small grammar, some of which are frequent."""
    rng = random.Random(seed)

    def noun_phrase() -> list[str]:
        adjective = rng.choices([[], ["old"], ["little"], ["little", "old"]], [6, 3, 2, 1])[0]
        return [rng.choices(["the", "a"], [2, 1])[0], *adjective, rng.choices(["dog", "cat", "bird"], [4, 2, 1])[0]]

    def sentence() -> list[str]:
        verb = rng.choices(["sees", "hears", "sleeps"], [3, 1, 2])[0]
        return [*noun_phrase(), verb, *([] if verb == "sleeps" else noun_phrase())]

    return [sentence() for _ in range(count)] + [["dog"], ["the"], []]


def encode(text: list[list[str]]) -> list[list[int]]:
    return [[WORDS.index(word) for word in line] for line in text]


class SlowKneserNey:
    """Modified Kneser–Ney from its definitions, with dictionaries of tuples and one n-gram at a time."""

    def __init__(self, text: list[list[str]], order: int, prune: tuple[int, ...] = ()) -> None:
        self.order = order
        self.prune = [prune[min(n, len(prune) - 1)] if prune else 0 for n in range(order)]
        lines = [["<s>", *line, "</s>"] for line in text]
        self.raw = [Counter(tuple(line[i : i + n]) for line in lines for i in range(len(line) - n + 1)) for n in
                    range(1, order + 1)]  # fmt: skip
        del self.raw[0][("<s>",)]
        self.counts = [self.adjusted(n) for n in range(1, order + 1)]
        self.discounts = [self.discounts_of(counts) for counts in self.counts]
        self.continuations = [defaultdict(list) for _ in range(order)]
        for counts, continuations in zip(self.counts, self.continuations, strict=True):
            for gram in counts:
                continuations[gram[:-1]].append(gram)
        self.types = len(WORDS) - 2  # neither <s> nor <pad> is ever predicted

    def adjusted(self, n: int) -> dict[tuple[str, ...], int]:
        if n == self.order:
            return dict(self.raw[n - 1])
        left = defaultdict(set)
        for gram in self.raw[n]:
            left[gram[1:]].add(gram[0])
        return {gram: c if gram[0] == "<s>" else len(left[gram]) for gram, c in self.raw[n - 1].items()}

    def discounts_of(self, counts: dict[tuple[str, ...], int]) -> dict[int, float]:
        n = Counter(counts.values())
        if not (n[1] and n[2] and n[3]):
            return FALLBACK
        y = n[1] / (n[1] + 2 * n[2])
        found = {j: j - (j + 1) * y * n[j + 1] / n[j] for j in (1, 2, 3)}
        return found if min(found.values()) >= 0 else FALLBACK

    def is_kept(self, gram: tuple[str, ...]) -> bool:
        return len(gram) == 1 or self.raw[len(gram) - 1][gram] > self.prune[len(gram) - 1]

    def discount(self, gram: tuple[str, ...]) -> float:
        n = len(gram) - 1
        return self.discounts[n][min(self.counts[n][gram], 3)]

    def gamma(self, context: tuple[str, ...]) -> float:
        n = len(context)
        grams = self.continuations[n].get(context, []) if n < self.order else []
        if not grams:
            return 1.0
        taken = sum(self.discount(gram) if self.is_kept(gram) else self.counts[n][gram] for gram in grams)
        return taken / sum(self.counts[n][gram] for gram in grams)

    def probability(self, word: str, context: tuple[str, ...]) -> float:
        """Interpolated, with every context that was seen."""
        n, gram = len(context), (*context, word)
        lower = self.probability(word, context[1:]) if context else 1 / self.types
        total = sum(self.counts[n][each] for each in self.continuations[n].get(context, []))
        if not total:
            return lower
        kept = gram in self.counts[n] and self.is_kept(gram)
        own = (self.counts[n][gram] - self.discount(gram)) / total if kept else 0.0
        return own + self.gamma(context) * lower


def table_of(model) -> list[dict[tuple[str, ...], tuple[float, float | None]]]:
    """By order, the probability and back-off weight of each n-gram that the model lists."""
    size, grams, found = model.config.vocab_size, [(word,) for word in WORDS], []
    for number, table in enumerate(model.tables):
        if number:
            grams = [(*grams[key // size], WORDS[key % size]) for key in table.keys.tolist()]
        probabilities = table.logprobs.double().exp().tolist()
        weights = table.backoffs.double().exp().tolist() if number < model.config.order - 1 else [None] * len(grams)
        found.append(dict(zip(grams, zip(probabilities, weights, strict=True), strict=True)))
    return found


@pytest.fixture(scope="module")
def trigrams():
    return estimate_ngrams(encode(sentences()), 3, len(WORDS), special_tokens=SPECIAL)


@pytest.mark.parametrize("prune", [(), (0, 1), (0, 0, 2), (0, 1, 1, 3)])
@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_every_entry_equals_the_slow_computation(order, prune):
    prune = prune[:order]
    model = estimate_ngrams(encode(sentences()), order, len(WORDS), special_tokens=SPECIAL, prune=prune)
    slow = SlowKneserNey(sentences(), order, prune)
    tables = table_of(model)
    for n, table in enumerate(tables, start=1):
        if n > 1:
            assert set(table) == {gram for gram in slow.raw[n - 1] if slow.is_kept(gram)}
        for gram, (probability, weight) in table.items():
            never = gram in {("<s>",), ("<pad>",)}
            expected = 0.0 if never else slow.probability(gram[-1], gram[:-1])
            assert probability == pytest.approx(expected, rel=1e-5, abs=1e-40), gram
            if weight is not None:
                assert weight == pytest.approx(slow.gamma(gram), rel=1e-5), gram


def test_some_discounts_are_estimated_and_not_the_fallback():
    slow = SlowKneserNey(sentences(), 3)
    assert slow.discounts[2] != FALLBACK
    assert slow.discounts[1] != FALLBACK


def test_pruned_models_are_smaller(trigrams):
    pruned = estimate_ngrams(encode(sentences()), 3, len(WORDS), special_tokens=SPECIAL, prune=(0, 0, 1))
    assert pruned.config.entries[0] == trigrams.config.entries[0]
    assert pruned.config.entries[1] < trigrams.config.entries[1]


@pytest.mark.parametrize("order", [1, 2, 3, 5])
@pytest.mark.parametrize("prune", [(), (0, 1)])
def test_logits_equal_the_slow_computation_in_every_context(order, prune):
    """Of contexts that were seen, that were not, and of those in part."""
    prune = prune[:order]
    model = estimate_ngrams(encode(sentences()), order, len(WORDS), special_tokens=SPECIAL, prune=prune)
    slow = SlowKneserNey(sentences(), order, prune)
    for line in [*sentences(5, seed=7), ["bird", "bird", "<unk>", "sees", "the", "the"], ["<unk>"]]:
        tokens = torch.tensor(encode([["<s>", *line]]))
        logits = model.double()(tokens)[0]
        for position, found in enumerate(logits.exp().tolist()):
            before = ("<s>", *line)[: position + 1]
            context = before[max(0, len(before) - order + 1) :] if order > 1 else ()
            for word, probability in zip(WORDS, found, strict=True):
                if word not in ("<s>", "<pad>"):
                    assert probability == pytest.approx(slow.probability(word, context), rel=1e-5)


@pytest.mark.parametrize("prune", [(), (0, 1, 2)])
@pytest.mark.parametrize("special", [SPECIAL, SpecialTokensConfig(pad=PAD, eos=EOS), SpecialTokensConfig()])
def test_probabilities_of_every_context_sum_to_1(special, prune):
    model = estimate_ngrams(encode(sentences()), 3, len(WORDS), special_tokens=special, prune=prune).double()
    contexts = torch.cartesian_prod(torch.arange(len(WORDS)), torch.arange(len(WORDS)))
    total = model(contexts).exp().sum(dim=-1)
    torch.testing.assert_close(total, torch.ones_like(total), rtol=0, atol=1e-6)
    assert torch.equal(model(contexts).argmax(-1) == PAD, torch.zeros_like(contexts, dtype=torch.bool))


def test_end_of_the_document_before_serves_as_a_start_token(trigrams):
    """A model without BOS, as contiguous windows have it, gives the same probabilities behind EOS as behind BOS."""
    without = estimate_ngrams(encode(sentences()), 3, len(WORDS), special_tokens=SpecialTokensConfig(pad=PAD, eos=EOS))
    line = encode([["the", "old", "cat", "sees"]])[0]
    with_bos, with_eos = (model(torch.tensor([[start, *line]])) for model, start in ((trigrams, BOS), (without, EOS)))
    predicted = [token for token in range(len(WORDS)) if token not in (PAD, BOS)]
    size = len(predicted)
    # Without BOS, its id is one more word that was never seen.
    np.testing.assert_allclose(
        with_bos[..., predicted].exp(), with_eos[..., predicted].exp(), atol=1 / size - 1 / (size + 1)
    )
    stream = np.array([token for each in encode(sentences()) for token in (*each, EOS)])
    streamed = without.config.build()
    streamed.fit(stream)
    assert torch.equal(streamed(torch.tensor([[EOS, *line]])), with_eos)
    crossing = without(torch.tensor([[*line, EOS, *line]]))[:, len(line) :]
    assert torch.equal(crossing, with_eos)


def test_text_without_special_tokens_is_one_document():
    model = NgramConfig(vocab_size=5, order=3).build()
    model.fit(np.array([4, 0, 1, 2, 0, 1, 3, 0, 1, 2, 0, 2]))
    assert model.config.entries == (7, 8)
    logits = model(torch.tensor([[0, 1, 2]]))
    assert logits[0, 1].argmax() == 2
    torch.testing.assert_close(logits.exp().sum(-1), torch.ones(1, 3))


def test_fitting_again_replaces_the_counts(trigrams):
    model = copy.deepcopy(trigrams)
    model.fit(np.array([4, 5, EOS]))
    assert model.config.entries == (3, 2)


def test_steps_with_a_state_equal_the_forward_pass(trigrams):
    model = copy.deepcopy(trigrams).double()
    text = [token for line in encode(sentences()) for token in (BOS, *line, EOS)]
    tokens = torch.tensor(text[:27]).view(3, 9)  # text that it knows, so that contexts are found
    expected = model(tokens)
    assert (model._contexts(tokens, model.initial_state(3).rows["contexts"])[:, 1:, 1] >= 0).float().mean() > 0.8
    for sizes in ([1] * 9, [3, 1, 5]):
        state = model.start(3, 20)
        parts = [model.step(part, state)[0] for part in tokens.split(sizes, dim=1)]
        assert torch.equal(torch.cat(parts, dim=1), expected)
        assert state.rows["contexts"].shape == (3, 2)


def test_row_alone_equals_row_in_company(trigrams):
    tokens = torch.randint(1, len(WORDS), (4, 7), generator=torch.Generator().manual_seed(2))
    together = trigrams(tokens)
    for row in range(4):
        assert torch.equal(trigrams(tokens[row : row + 1, : 3 + row]), together[row : row + 1, : 3 + row])


def test_packed_documents_do_not_see_each_other(trigrams):
    first, second = (encode([line])[0] for line in (["the", "dog"], ["a", "cat", "sleeps"]))
    packed = torch.tensor([[BOS, *first, EOS, BOS, *second]])
    documents = torch.tensor([[0] * 4 + [1] * 4])
    assert torch.equal(trigrams(packed, documents=documents)[:, 4:], trigrams(torch.tensor([[BOS, *second]])))


def test_beam_search_scores_equal_forced_scores(trigrams):
    model = copy.deepcopy(trigrams).double()
    prompts = [(BOS,), (BOS, 4), (BOS, 5, 8)]
    found = search_batch(model, [Request(prompt, 6, DecodeConfig(beam_size=3, nbest=3)) for prompt in prompts], EOS)
    for prompt, hypotheses in zip(prompts, found, strict=True):
        for each in hypotheses:
            (forced,) = score_all(model, [prompt], [each.tokens], EOS if each.ended else None, batch_tokens=100)
            torch.testing.assert_close(sum(forced), each.logprob, **EXACT)


def test_a_frequent_word_gets_a_chunk_of_its_own(trigrams, monkeypatch):
    tokens = torch.randint(1, len(WORDS), (2, 20), generator=torch.Generator().manual_seed(3))
    expected = trigrams(tokens)
    monkeypatch.setattr("regard.model.before.ngram.model._CHUNK", 5)
    assert torch.equal(trigrams(tokens), expected)


def test_saved_and_loaded_model_is_equal(trigrams, tmp_path):
    save_model(trigrams, tmp_path / "run")
    loaded = regard.load(tmp_path / "run")
    assert loaded.config == trigrams.config
    for name, tensor in trigrams.state_dict().items():
        assert torch.equal(loaded.model.state_dict()[name], tensor), name


def test_works_on_the_meta_device(trigrams):
    with torch.device("meta"):
        model = trigrams.config.build()
        logits = model(torch.zeros(2, 5, dtype=torch.long))
    assert logits.is_meta
    assert logits.shape == (2, 5, len(WORDS))


@pytest.mark.parametrize("name", ["model.arpa", "model.arpa.gz"])
@pytest.mark.parametrize("prune", [(), (0, 1)])
def test_arpa_written_and_read_again_is_equal(name, prune, tmp_path):
    model = estimate_ngrams(encode(sentences()), 3, len(WORDS), special_tokens=SPECIAL, prune=prune)
    write_arpa(model, WORDS, tmp_path / name)
    read, vocabulary = read_arpa(tmp_path / name)
    assert vocabulary == WORDS
    assert read.config.entries == model.config.entries
    assert (read.config.special_tokens.bos, read.config.special_tokens.eos) == (BOS, EOS)
    for key, tensor in model.state_dict().items():
        torch.testing.assert_close(read.state_dict()[key], tensor, rtol=1e-6, atol=1e-7)


def test_arpa_of_a_model_without_bos_begins_with_it(tmp_path):
    model = estimate_ngrams(encode(sentences()), 3, len(WORDS), special_tokens=SpecialTokensConfig(pad=PAD, eos=EOS))
    names = [word if word != "<s>" else "never" for word in WORDS]
    write_arpa(model, names, tmp_path / "model.arpa")
    read, vocabulary = read_arpa(tmp_path / "model.arpa")
    ids = {word: number for number, word in enumerate(vocabulary)}
    line = ["the", "old", "cat", "sees"]
    expected = model(torch.tensor([[EOS, *encode([line])[0]]]))
    found = read(torch.tensor([[ids["<s>"], *(ids[word] for word in line)]]))
    torch.testing.assert_close(found[..., [ids[name] for name in names]], expected, rtol=1e-5, atol=1e-5)


ARPA = """\\data\\
ngram 1=4
ngram 2=2

\\1-grams:
-1.0\t<unk>
0\t<s>\t-0.5
-0.4\t</s>
-0.3\ta\t-0.25

\\2-grams:
-0.1\t<s> a
-0.2\ta </s>

\\end\\
"""


def test_arpa_of_other_tools_leaves_out_weights_of_0(tmp_path):
    (tmp_path / "model.arpa").write_text(ARPA)
    model, vocabulary = read_arpa(tmp_path / "model.arpa")
    assert vocabulary == ["<unk>", "<s>", "</s>", "a"]
    logits = model(torch.tensor([[1, 3]]))[0] / math.log(10)
    np.testing.assert_allclose(logits[0, [0, 2, 3]], [-1.5, -0.9, -0.1], atol=1e-6)
    np.testing.assert_allclose(logits[1, [0, 2, 3]], [-1.25, -0.2, -0.55], atol=1e-6)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("\\data\\", ""), "no line"),
        (("ngram 2=2", "ngram 3=2"), "expected 'ngram 2=…'"),
        (("ngram 2=2", "ngram 2=3"), "line 15: expected a probability, 2 tokens"),
        (("ngram 1=4", "ngram 1=3"), "expected '\\\\2-grams:'"),
        (("<s> a", "<s> b"), "'b' in the 2-grams is not among the 1-grams"),
        (("a </s>", "<s> a"), "listed twice"),
        (("-0.3", "x"), "line 9: expected a probability"),
        (("-0.3", "nan"), "line 9: expected a probability"),
        (("\\end\\", ""), "expected \\\\end\\\\"),
        (("\ta\t", "\t<s>\t"), "listed twice"),
    ],
)
def test_damaged_arpa_is_refused_with_its_line(change, problem, tmp_path):
    (tmp_path / "model.arpa").write_text(ARPA.replace(*change, 1))
    with pytest.raises(UserError, match=problem):
        read_arpa(tmp_path / "model.arpa")


def test_arpa_refuses_what_it_cannot_hold(trigrams, tmp_path):
    with pytest.raises(UserError, match="no such file"):
        read_arpa(tmp_path / "none.arpa")
    (tmp_path / "model.arpa.gz").write_text(ARPA)
    with pytest.raises(UserError, match="cannot be read"):
        read_arpa(tmp_path / "model.arpa.gz")
    with pytest.raises(UserError, match="14"):
        write_arpa(trigrams, WORDS[:-1], tmp_path / "model.arpa")
    with pytest.raises(UserError, match="'two words'"):
        write_arpa(trigrams, [*WORDS[:-1], "two words"], tmp_path / "model.arpa")
    with pytest.raises(UserError, match="twice"):
        write_arpa(trigrams, [*WORDS[:-1], "dog"], tmp_path / "model.arpa")


def test_invalid_settings_and_texts_are_refused():
    for settings, key in (
        ({"prune": (1,)}, "prune"),
        ({"prune": (0, 2, 1)}, "prune"),
        ({"prune": (0, 0, 0, 0)}, "prune"),
        ({"entries": (1,)}, "entries"),
        ({"max_continuations": (11, 1)}, "max_continuations"),
    ):
        with pytest.raises(ConfigError, match=key):
            NgramConfig(vocab_size=10, order=3, **settings)
    with pytest.raises(UserError, match="no text"):
        estimate_ngrams([], 2, 10)
    with pytest.raises(UserError, match="from 3 to 12"):
        estimate_ngrams([[3, 12]], 2, 10)
    with pytest.raises(UserError, match="discounts of 1-grams"):
        estimate_ngrams([[3, 4]], 2, 10, discount_fallback=False)


def test_ids_outside_the_vocabulary_are_refused(trigrams):
    with pytest.raises(UserError, match="Token id 14"):
        trigrams(torch.tensor([[4, 14]]))


def test_entries_are_sorted(trigrams):
    for table in list(trigrams.tables)[1:]:
        keys = table.keys.tolist()
        assert all(before < after for before, after in pairwise(keys))
