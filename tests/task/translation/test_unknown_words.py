"""Unknown words of translations are replaced through attention: a model whose alignment is known, and real ones."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from regard import UserError
from regard.data.text.pairs import Pair
from regard.data.tokenizers.tokenizer import TextTokenizer
from regard.data.tokenizers.training import TokenizerConfig, train_tokenizer
from regard.decode import DecodeConfig, Ensemble
from regard.model.before import RecurrentState, Seq2SeqConfig, SequenceToSequence
from regard.model.before.base import AlignmentModule
from regard.run import save_model
from regard.task.run import train as train_run
from regard.task.translation.pipeline import LineTranslator, Translator
from regard.task.translation.unknown_words import (
    DICTIONARY,
    find_dictionary,
    learn_dictionary,
    load_dictionary,
    save_dictionary,
)
from tests.model.before.samples import sample
from tests.model.small_models import encoder_decoder
from tests.task.small import TRANSLATIONS, WORDS, command, quick_runs, save_random_model, small_recipe, write_table

SPECIAL = {"pad": 0, "bos": 1, "eos": 2}
SOURCE = train_tokenizer(TokenizerConfig(kind="word"), [" ".join(WORDS)])
TARGET = train_tokenizer(TokenizerConfig(kind="word"), [" ".join(TRANSLATIONS)])
SEARCH = DecodeConfig(beam_size=2, nbest=1)


class BackwardConfig(Seq2SeqConfig):
    """A model that translates word by word, from the last to the first."""

    kind: Literal["backward"] = "backward"

    def build(self) -> "Backward":
        return Backward(self)


class Backward(SequenceToSequence):
    """The j-th token of the output translates the j-th last word, and attends to it alone."""

    def __init__(self, config: BackwardConfig) -> None:
        super().__init__()
        self.config: BackwardConfig = config
        self.alignment = AlignmentModule()
        self.anchor = torch.nn.Parameter(torch.zeros(1))
        source = [SOURCE.tokenizer.id_to_token(token) for token in SOURCE.ids]
        words = dict(zip(WORDS, TRANSLATIONS, strict=True)) | {"⟨eos⟩": "⟨eos⟩"}
        self.translations = torch.tensor([TARGET.tokenizer.token_to_id(words.get(each, "⟨unk⟩")) for each in source])

    def encode(self, source: Tensor, lengths: Tensor | None = None, attention_hook: Any = None) -> RecurrentState:
        step = torch.zeros(len(source), 1, dtype=torch.long)
        return RecurrentState({"step": step}, {"source": source}, lengths)

    def decode(self, tokens: Tensor, state: RecurrentState, attention_hook: Any = None) -> Tensor:
        source = state.memory["source"].repeat_interleave(state.group, dim=0)
        lengths = (
            torch.full((state.sources,), source.shape[1]) if state.memory_lengths is None else state.memory_lengths
        )
        words = lengths.repeat_interleave(state.group)[:, None] - 1  # without EOS
        at = state.rows["step"] + torch.arange(tokens.shape[1])
        at = torch.where(at < words, words - 1 - at, words)  # EOS at the end
        state.rows = {"step": state.rows["step"] + tokens.shape[1]}
        if attention_hook is not None:
            attention_hook(self.alignment, torch.nn.functional.one_hot(at, source.shape[1])[:, None].float())
        return 9.0 * torch.nn.functional.one_hot(self.translations[source.gather(1, at)], TARGET.vocab_size)


BACKWARD = BackwardConfig(vocab_size=TARGET.vocab_size, source_vocab_size=SOURCE.vocab_size, special_tokens=SPECIAL)
LINES = ["old Anna", "the big sun, O'Neill", "red cat", "", "Xavier Yvonne sea Xavier"]
ALIGNED = ["{Anna} alt", "{O'Neill} {,} Sonne groß {the}", "Katze rot", "", "{Xavier} See {Yvonne} {Xavier}"]


def filled(text: str, words: dict[str, str]) -> str:
    """The text with what `words` has for what is in braces."""
    parts = text.replace("}", "{").split("{")
    return "".join(words.get(part, part) if number % 2 else part for number, part in enumerate(parts))


@pytest.mark.parametrize(
    ("kind", "words"), [("copy", {"Anna": "Hanna"}), ("dictionary", {"Anna": "Hanna", "the": "die", "Xavier": "Xaver"})]
)
@pytest.mark.parametrize("ensembled", [False, True])
def test_unknown_words_are_those_that_attention_aligns(kind: Any, words: dict[str, str], ensembled: bool) -> None:
    model = BACKWARD.build().eval()
    decoder = Ensemble([model, model]) if ensembled else model
    translator = LineTranslator(decoder, SOURCE, TARGET, dictionary=words)  # type: ignore[arg-type]
    found = translator.translate(LINES, SEARCH.updated({"replace_unk": kind}))
    expected = [filled(each, words if kind == "dictionary" else {}) for each in ALIGNED]
    assert [best.text for best, *_ in found] == expected
    assert found[0][0].tokens == (TARGET.unk, TARGET.encode("alt")[0])
    plain = translator.translate(LINES, SEARCH)
    assert [best.text for best, *_ in plain] == [
        filled(each, dict.fromkeys(_braced(each), "⟨unk⟩")) for each in ALIGNED
    ]


def _braced(text: str) -> list[str]:
    return text.replace("}", "{").split("{")[1::2]


MODELS: dict[str, dict[str, Any]] = {
    "Bahdanau": {"kind": "recurrent-attention", "width": 8, "hidden": 12},
    "Luong": {"kind": "recurrent-attention", "width": 8, "hidden": 12, "attention": {"kind": "dot"}}
    | {"decoder": {"kind": "luong"}},
    "GNMT": {"kind": "gnmt", "width": 8, "layers": 2},
    "Deep-Att": {"kind": "deep-att", "width": 8, "hidden": 6},
    "ConvS2S": {"kind": "convolutional", "width": 8, "max_length": 40},
    "queries and keys": {"kind": "context", "width": 8, "hidden": 12, "max_length": 40},
}


def untrained(name: str) -> Any:
    """A model with random weights that writes unknown tokens about as often as others."""
    sizes = {"vocab_size": TARGET.vocab_size, "source_vocab_size": SOURCE.vocab_size}
    config = (
        encoder_decoder(special_tokens=SPECIAL, source_vocab_size=None, vocab_size=TARGET.vocab_size)
        if name == "Transformer"
        else sample(MODELS[name]["kind"], **{k: v for k, v in (MODELS[name]).items() if k != "kind"}).model_copy(
            update=sizes
        )
    )
    torch.manual_seed(3)
    model = config.build().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.4 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize("name", ["Transformer", *MODELS])
def test_words_have_the_largest_weight_of_the_last_layer(name: str) -> None:
    """Against a forward pass over each line alone; those of a batch are padded."""
    model = untrained(name)
    source = TARGET if name == "Transformer" else SOURCE
    lines = ["old Anna Bert red", "sea", "Carla sun Dora big cat Emil dog", "Finn man"] * 4
    limits = {"max_length_ratio": 1e-6, "max_length_offset": 7, "min_length": 3}
    search = DecodeConfig(beam_size=1, sample=True, temperature=4.0, **limits)  # so hot that all tokens occur
    translator = LineTranslator(model, source, TARGET)
    plain = translator.translate(lines, search)
    found = translator.translate(lines, search.updated({"replace_unk": "copy"}))
    replaced = 0
    for index, (line, before, after) in enumerate(zip(lines, plain, found, strict=True)):
        (alone,) = translator.translate([line], search.updated({"replace_unk": "copy"}), seed_offsets=[index])
        assert [one.text for one in alone] == [one.text for one in after]
        for one, other in zip(before, after, strict=True):
            assert (one.tokens, one.score) == (other.tokens, other.score)
            assert TARGET.unk in one.tokens or one == other
            words = _aligned(model, source.encode(line), line.split(), one.tokens)
            expected = [
                word if token == TARGET.unk else TARGET.decode([token])
                for word, token in zip(words, one.tokens, strict=True)
            ]
            assert other.text == " ".join(filter(None, expected))
            replaced += one.tokens.count(TARGET.unk)
    assert replaced > 3


def _aligned(model: Any, source: list[int], words: list[str], tokens: Sequence[int]) -> list[str]:
    """The source word with the largest weight at each step, by the hook of a forward pass."""
    seen: dict[Any, Tensor] = {}

    def hook(module: Any, weights: Tensor) -> None:
        if weights.shape[2] == len(tokens) and "Self" not in type(module).__name__:
            seen[module] = weights[0].mean(dim=0)

    with torch.no_grad():
        model(torch.tensor([[*source, 2]]), torch.tensor([[1, *tokens[:-1]]]), attention_hook=hook)
    last = list(seen.values())[-1]
    return [words[int(row[: len(words)].argmax())] for row in last]


def test_dictionary_has_words_that_vocabularies_lack(tmp_path: Path) -> None:
    rows = [Pair("old cat Anna", "alt Katze Hanna"), Pair("old dog", "alt Hund"), Pair("cat", "Katze")] * 2
    learned = learn_dictionary(lambda: rows)
    assert learned == {"old": "alt", "cat": "Katze", "Anna": "Hanna", "dog": "Hund"}
    save_dictionary(learned, tmp_path / DICTIONARY)
    assert (tmp_path / DICTIONARY).read_text("utf-8").splitlines()[0] == "Anna\tHanna"
    assert find_dictionary(tmp_path) == learned
    assert find_dictionary(tmp_path / "elsewhere") is None


def test_invalid_dictionary_is_refused_by_its_line(tmp_path: Path) -> None:
    (tmp_path / DICTIONARY).write_text("one\teins\ntwo zwei\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"dictionary\.tsv, line 2: expected a source word, a tab"):
        load_dictionary(tmp_path / DICTIONARY)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder of an untrained model that writes unknown tokens, without a dictionary."""
    folder = tmp_path_factory.mktemp("models") / "words"
    model = untrained("Bahdanau")
    with torch.no_grad():
        model.lm_head_bias[TARGET.unk] += 4
    tokenizers = {"tokenizer": SOURCE.tokenizer, "target_tokenizer": TARGET.tokenizer}
    return save_model(model, folder, **tokenizers, origin={"decode": SEARCH.updated({"max_length_offset": 3}).plain()})


def test_command_replaces_by_a_copy_or_by_a_dictionary(run: Path, tmp_path: Path) -> None:
    plain = command("translate", run, "Anna Anna")
    assert "⟨unk⟩" in plain.out
    expected = plain.out.replace("⟨unk⟩", "Anna")
    copied = command("translate", run, "Anna Anna", "--replace-unk", "copy")
    assert (copied.code, copied.out, copied.err) == (0, expected, "")
    assert command("translate", run, "Anna Anna", "--set", "decode.replace_unk=copy").out == expected
    without = command("translate", run, "Anna Anna", "--replace-unk", "dictionary")
    assert (without.code, without.out) == (0, expected)
    assert without.err.count("There is no dictionary.tsv") == 1
    save_dictionary({"Anna": "Hanna"}, tmp_path / "names.tsv")
    given = command("translate", run, "Anna Anna", "--dictionary", tmp_path / "names.tsv")
    assert given.out == plain.out.replace("⟨unk⟩", "Hanna")


def test_score_replaces_unknown_words_too(run: Path, tmp_path: Path) -> None:
    output = command("translate", run, "Anna Anna", "--replace-unk", "copy").out.strip()
    data = write_table(tmp_path / "pairs.tsv", [("Anna Anna", f"{output} sehr lang und breit")])
    scores = [command("score", run, "--data", data, *more).out for more in ((), ("--set", "decode.replace_unk=copy"))]
    assert scores[0] != scores[1]


def test_dictionary_command_writes_into_the_run_folder(run: Path, tmp_path: Path) -> None:
    pairs = write_table(tmp_path / "pairs.tsv", [("old Anna", "alt Hanna"), ("old", "alt")])
    made = command("dictionary", run, "--pairs", pairs)
    assert (made.code, made.out) == (0, f"{run / DICTIONARY}: 2 words\n")
    try:
        plain = command("translate", run, "Anna Anna").out
        found = command("translate", run, "Anna Anna", "--replace-unk", "dictionary").out
        assert found == plain.replace("⟨unk⟩", "Hanna")
    finally:
        (run / DICTIONARY).unlink()


def test_training_learns_the_dictionary_that_its_recipe_asks_for(tmp_path: Path) -> None:
    known = dict(zip(WORDS, TRANSLATIONS, strict=True))
    rows = [(f"{one} {other}", f"{known[one]} {known[other]}") for one in known for other in known]
    train = write_table(tmp_path / "train.tsv", rows)
    changes = ['tokenizer={kind="word", vocab_size=9}', 'decode.replace_unk="dictionary"', "train.steps=2"]
    with quick_runs(tmp_path / "cache"):
        result = train_run(small_recipe(train, *changes), tmp_path / "run")
    assert find_dictionary(result.folder) == known
    translator = Translator.load(result.folder)
    assert "⟨unk⟩" not in translator.translate("red old big")


@pytest.mark.parametrize(
    ("model", "target", "problem"),
    [
        (sample("recurrent", width=8, hidden=12).build(), TARGET, "needs a model whose decoder attends to the source"),
        (
            untrained("Bahdanau"),
            TextTokenizer(train_tokenizer(TokenizerConfig(kind="byte"), []).tokenizer),
            "kind word",
        ),
    ],
    ids=["no attention", "no unknown token"],
)
def test_what_cannot_be_replaced_is_refused(model: Any, target: TextTokenizer, problem: str) -> None:
    with pytest.raises(UserError, match=rf"^decode\.replace_unk .*{problem}"):
        LineTranslator(model, SOURCE, target).translate(["old"], SEARCH.updated({"replace_unk": "copy"}))


def test_training_refuses_it_before_the_first_step(tmp_path: Path) -> None:
    train = write_table(tmp_path / "train.tsv", [("a b", "c d"), ("a", "c"), ("b", "d")])
    with quick_runs(tmp_path / "cache"), pytest.raises(UserError, match=r"decode\.replace_unk needs a tokenizer"):
        train_run(small_recipe(train, 'decode.replace_unk="copy"'), tmp_path / "run")
    assert not list((tmp_path / "run").glob("*.*"))


def test_texts_that_are_no_translations_refuse_it(tmp_path: Path) -> None:
    answer = command("translate", save_random_model(tmp_path / "model"), "red", "--replace-unk", "copy")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.count("\n") == 1
    with pytest.raises(UserError, match=r"decode\.replace_unk replaces words of translations"):
        SEARCH.updated({"replace_unk": "copy"}).check_no_translation()
