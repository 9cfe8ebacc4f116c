"""CTranslate2 as what searches gives what our own search gives, and refuses what it cannot do."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from regard import UserError
from regard.decode import DecodeConfig, Wish
from regard.interop import ctranslate2_engine
from regard.interop.ctranslate2 import export_ctranslate2
from regard.interop.ctranslate2_engine import exported_once
from regard.model import LanguageModel, LanguageModelConfig
from regard.run import load, save
from regard.task import Generator, Translator, load_generator, load_translator
from regard.task.ctranslate2 import CTranslate2Generator, CTranslate2Translator, closest_power, differs
from regard.task.words import make_wish
from tests.task.small import command, random_model, save_random_model, small_tokenizer
from tests.task.test_generator import save_random_writer
from tests.task.test_translator import EVERYDAY

pytest.importorskip("ctranslate2")

GREEDY = DecodeConfig(beams=1)
MOUSE = "The cat ate the mouse."


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A cache of their own for these tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def ours() -> Translator:
    return load_translator("en-tr")


@pytest.fixture(scope="module")
def theirs(ours: Translator) -> CTranslate2Translator:
    return CTranslate2Translator(ours, "en-tr")


# The same translations.


def test_greedy_search_translates_everyday_sentences_as_ours_does(
    ours: Translator, theirs: CTranslate2Translator
) -> None:
    lines = list(EVERYDAY)
    for (own,), (their,) in zip(
        ours.translate_sentences(lines, ours.search(1)),
        theirs.translate_sentences(lines, theirs.search(1)),
        strict=True,
    ):
        assert (their.text, their.tokens, their.ended) == (own.text, own.tokens, own.ended)
        assert their.score == pytest.approx(own.score, abs=1e-3)
        assert their.steps == pytest.approx(own.steps, abs=1e-3)


def test_beam_search_finds_the_same_best_translations(ours: Translator, theirs: CTranslate2Translator) -> None:
    lines = list(EVERYDAY)
    for (own, *_), (their, *_) in zip(ours.translate_sentences(lines), theirs.translate_sentences(lines), strict=True):
        assert their.text == own.text
        assert their.score == pytest.approx(own.score, abs=1e-3)


@pytest.mark.parametrize(("penalty", "strength"), [("power", 1.0), ("power", 0.5), ("none", 0.6)])
def test_a_penalty_that_both_know_ranks_alike(
    penalty: str, strength: float, ours: Translator, theirs: CTranslate2Translator
) -> None:
    decode = DecodeConfig.read({"beams": 4, "penalty": penalty, "strength": strength})
    (own,), (their,) = (one.translate_sentences([MOUSE], decode) for one in (ours, theirs))
    assert [one.text for one in their[:2]] == [one.text for one in own[:2]]
    assert [one.score for one in their[:2]] == pytest.approx([one.score for one in own[:2]], abs=1e-3)


def test_the_layout_of_a_text_is_kept(ours: Translator, theirs: CTranslate2Translator) -> None:
    text = f"  {MOUSE}  I drink coffee.\n\n- He forgot his umbrella.\n"
    assert theirs.translate(text, beams=1) == ours.translate(text, beams=1)


def test_an_empty_line_stays_one(theirs: CTranslate2Translator) -> None:
    heard: list[int] = []
    found = theirs.translate_sentences(["", MOUSE, "  "], GREEDY, heard.append)
    assert [best.text for best, *_ in found] == ["", "Kedi fareyi yedi.", ""]
    assert heard == [3]


def test_many_lines_come_back_in_their_order(ours: Translator, theirs: CTranslate2Translator) -> None:
    lines = [line for line in EVERYDAY for _ in range(30)]  # more than are searched at once
    heard: list[int] = []
    found = theirs.translate_sentences(lines, GREEDY, heard.append)
    assert len(heard) > 1
    assert heard[-1] == len(lines)
    best = {line: ours.translate(line, beams=1) for line in EVERYDAY}
    assert [one.text for (one,) in found] == [best[line] for line in lines]


def test_several_translations_come_best_first_by_the_models_own_penalty(theirs: CTranslate2Translator) -> None:
    (found,) = theirs.translate_sentences([MOUSE], theirs.search(4))
    assert len({one.text for one in found}) == 4
    scores = [one.score for one in found]
    assert scores == sorted(scores, reverse=True)
    penalty = theirs.decode.length_penalty()
    for one in found:
        assert one.score == pytest.approx(one.log_probability / penalty.at(len(one.tokens) + one.ended))
        assert one.log_probability == pytest.approx(sum(one.steps))


def test_scores_without_those_of_tokens_are_the_same(ours: Translator, theirs: CTranslate2Translator) -> None:
    quick = CTranslate2Translator(ours, "en-tr", scored=False)
    (own,), (their,) = (one.translate_sentences([MOUSE], theirs.search(3)) for one in (theirs, quick))
    assert [one.score for one in their] == pytest.approx([one.score for one in own], abs=1e-3)
    assert {one.steps for one in their} == {()}


def test_an_output_is_cut_where_ours_is(tmp_path: Path) -> None:
    """An untrained model seldom comes to an end: lines of different lengths are searched together, each to its own."""
    place = tmp_path / "small"
    decode = DecodeConfig(beams=1, longest_factor=1.0, longest_extra=2)
    tokenizer = small_tokenizer()
    save(random_model(tokenizer.vocabulary), place, tokenizer=tokenizer.tokenizer, origin={"decode": decode.plain()})
    own = load_translator(place)
    lines = ["red", "old cat sea sun", "big dog"]
    first = own.translate_sentences(lines)
    second = CTranslate2Translator(own, place, scored=False).translate_sentences(lines)
    assert any(not one.ended for (one,) in first), "the case is not met"
    assert [(one.tokens, one.ended) for (one,) in second] == [(one.tokens, one.ended) for (one,) in first]
    assert [one.score for (one,) in second] == pytest.approx([one.score for (one,) in first], abs=1e-3)


# Words.


@pytest.mark.parametrize("beams", [1, 4])
def test_a_beginning_stands_before_the_rest_and_counts(
    beams: int, ours: Translator, theirs: CTranslate2Translator
) -> None:
    wish = make_wish(ours.target_text, prefix="Fareyi")
    decode = ours.search(beams)
    (own,), (their,) = (one.translate_sentences([MOUSE], decode, wish=wish) for one in (ours, theirs))
    assert their[0].text == own[0].text
    assert their[0].text.startswith("Fareyi")
    assert their[0].score == pytest.approx(own[0].score, abs=1e-3)


@pytest.mark.parametrize("beams", [1, 4])
def test_a_forbidden_word_does_not_come(beams: int, ours: Translator, theirs: CTranslate2Translator) -> None:
    assert "fareyi" not in theirs.translate(MOUSE, beams=beams, forbidden=["fareyi"])
    forbidden = ["fareyi", "Kedi"]
    assert theirs.translate(MOUSE, beams=beams, forbidden=forbidden) == ours.translate(
        MOUSE, beams=beams, forbidden=forbidden
    )


# Drawn by chance.


def test_words_are_drawn(theirs: CTranslate2Translator) -> None:
    decode = DecodeConfig(beams=1, sample=True, temperature=3.0)
    assert len({theirs.translate_sentences([MOUSE], decode)[0][0].text for _ in range(5)}) > 1


@pytest.mark.parametrize("changes", [{"temperature": 0.0}, {"top_k": 1}, {"top_p": 1e-6}])
def test_drawing_among_the_likeliest_alone_is_greedy(changes: dict[str, Any], theirs: CTranslate2Translator) -> None:
    decode = DecodeConfig.read({"beams": 1, "sample": True, **changes})
    assert theirs.translate_sentences([MOUSE], decode)[0][0].text == theirs.translate(MOUSE, beams=1)


def test_drawing_among_more_words_than_there_are_is_drawing_among_all(theirs: CTranslate2Translator) -> None:
    decode = DecodeConfig(beams=1, sample=True, temperature=0.1, top_k=1_000_000)
    assert theirs.translate_sentences([MOUSE], decode)[0][0].text == "Kedi fareyi yedi."


# What it cannot do.


REFUSED: dict[str, tuple[DecodeConfig, Wish, int, str]] = {
    "required words": (GREEDY, Wish(required=((5,),)), 0, "cannot require words"),
    "groups": (DecodeConfig(beams=4, groups=2), Wish(), 0, "cannot search in diverse groups"),
    "alternatives": (GREEDY, Wish(), 2, "cannot tell the alternatives"),
    "min_p": (DecodeConfig(beams=1, sample=True, min_p=0.1), Wish(), 0, "--min-p"),
    "repetition": (DecodeConfig(beams=1, sample=True, repetition=1.2), Wish(), 0, "repeated words"),
    "a seed": (DecodeConfig(beams=1, sample=True, seed=3), Wish(), 0, "a seed for each line"),
}


@pytest.mark.parametrize(("decode", "wish", "alternatives", "sentence"), REFUSED.values(), ids=REFUSED.keys())
def test_what_it_cannot_do_is_refused_with_what_to_do(
    decode: DecodeConfig, wish: Wish, alternatives: int, sentence: str, theirs: CTranslate2Translator
) -> None:
    with pytest.raises(UserError) as refused:
        theirs.translate_sentences([MOUSE], decode, wish=wish, alternatives=alternatives)
    assert sentence in str(refused.value)
    assert str(refused.value).endswith("; leave that out, or use --engine regard.")


def test_what_no_output_can_fulfil_is_refused(theirs: CTranslate2Translator) -> None:
    with pytest.raises(UserError, match="is part of what it begins with"):
        theirs.translate_sentences([MOUSE], GREEDY, wish=Wish(prefix=(5, 6, 7), forbidden=((6, 7),)))
    with pytest.raises(UserError, match="begins with 300 given tokens"):
        theirs.translate_sentences([MOUSE], GREEDY, wish=Wish(prefix=(5,) * 300))


def test_an_ensemble_is_refused(ours: Translator, theirs: CTranslate2Translator) -> None:
    with pytest.raises(UserError, match="CTranslate2 cannot join models"):
        theirs.joined([ours])
    with pytest.raises(UserError, match="CTranslate2 cannot join models"):
        CTranslate2Translator(ours.joined([ours]), "en-tr")


def test_a_sentence_longer_than_its_table_of_positions_is_refused(theirs: CTranslate2Translator) -> None:
    with pytest.raises(UserError, match=r"has \d+ tokens and CTranslate2 takes 1023 at most: 'cat cat"):
        theirs.translate_sentences(["cat " * 1100], GREEDY)


def test_a_device_it_does_not_know_is_refused(ours: Translator) -> None:
    with pytest.raises(UserError, match="on cpu or cuda, not on meta"):
        CTranslate2Translator(ours, "en-tr", "meta")


def test_without_the_package_a_person_is_told_how_to_get_it(ours: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(UserError) as refused:
        CTranslate2Translator(ours, "en-tr")
    assert str(refused.value) == (
        "CTranslate2 is not installed; install it with pip install 'regard[interop]', or use --engine regard."
    )


# The length penalty.


def test_the_papers_penalty_is_told_to_differ_and_others_are_not() -> None:
    sentence = differs(DecodeConfig())
    assert sentence is not None
    assert "length^0.48" in sentence
    assert "\n" not in sentence
    for decode in (GREEDY, DecodeConfig(penalty="power"), DecodeConfig(penalty="none"), DecodeConfig(strength=0)):
        assert differs(decode) is None


def test_the_closest_power_grows_as_the_papers_penalty_does_at_a_usual_length() -> None:
    """The slope of log penalty over log length, at twenty tokens."""
    decode = DecodeConfig(strength=0.9)
    at = [torch.tensor(decode.length_penalty().at(length)).log() for length in (19, 21)]
    slope = (at[1] - at[0]) / torch.tensor(21 / 19).log()
    assert closest_power(decode) == pytest.approx(float(slope), abs=1e-3)


# The export.


def counted(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    calls: list[Path] = []

    def export(folder: Path, out: Path) -> str:
        calls.append(out)
        return export_ctranslate2(folder, out)

    monkeypatch.setattr(ctranslate2_engine, "export_ctranslate2", export)
    return calls


def test_a_model_is_exported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    place, calls = save_random_model(tmp_path / "small"), counted(monkeypatch)
    first, second = exported_once(place), exported_once(place)
    assert (calls, second) == ([first], first)
    assert first.parent == tmp_path / "cache" / "ctranslate2"
    assert os.listdir(first.parent) == [first.name]


def test_a_copy_of_a_model_needs_no_export_of_its_own(tmp_path: Path) -> None:
    first, second = (save_random_model(tmp_path / name) for name in ("one", "two"))
    assert exported_once(first) == exported_once(second)


def test_a_model_that_changed_is_exported_anew(tmp_path: Path) -> None:
    place = save_random_model(tmp_path / "small")
    first = exported_once(place)
    loaded = load(place)
    with torch.no_grad():
        loaded.model.vocabulary.weight.add_(1)
    save(loaded.model, place, tokenizer=loaded.tokenizer, replace=True)
    assert exported_once(place) != first


def test_an_export_that_another_process_finished_first_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = save_random_model(tmp_path / "small")
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))

    def slow(folder: Path, out: Path) -> str:
        export_ctranslate2(folder, out)
        return export_ctranslate2(folder, out)  # finds the other's in its place

    monkeypatch.setattr(ctranslate2_engine, "export_ctranslate2", slow)
    assert (exported_once(place) / "model.bin").is_file()


def test_a_broken_export_is_named_with_what_to_do(tmp_path: Path) -> None:
    place = save_random_model(tmp_path / "small")
    kept = exported_once(place)
    (kept / "model.bin").write_bytes(b"nothing")
    with pytest.raises(UserError, match=r"cannot be opened by CTranslate2 .* remove it: it will be made again"):
        CTranslate2Translator(load_translator(place), place)


# The command.


def test_the_command_prints_the_same_with_either_engine() -> None:
    words = ("translate", "en-tr", MOUSE, "I drink coffee. He forgot it.", "--beams", 1, "--threads", 1)
    done = command(*words, "--engine", "ctranslate2")
    assert (done.code, done.err) == (0, "")
    assert done.out == command(*words, "--engine", "regard").out


def test_the_command_says_in_a_line_that_the_papers_penalty_differs() -> None:
    done = command("translate", "en-tr", MOUSE, "--nbest", 3, "--engine", "ctranslate2")
    assert (done.code, done.out.count("\n"), done.err.count("\n")) == (0, 3, 1)
    assert "length penalty" in done.err


def test_json_has_the_same_facts_with_either_engine() -> None:
    first, second = (
        json.loads(command("translate", "en-tr", MOUSE, "--json", "--beams", 1, "--engine", engine).out)
        for engine in ("regard", "ctranslate2")
    )
    (own,), (their,) = (facts.pop("sentences") for facts in (first, second))
    assert first == second
    ((one,), (other,)) = own["translations"], their["translations"]
    assert [token["text"] for token in one["tokens"]] == [token["text"] for token in other["tokens"]]
    assert one.keys() == other.keys()
    assert other["log_probability"] == pytest.approx(one["log_probability"], abs=1e-3)


@pytest.mark.parametrize(
    "words",
    [
        ["--require", "yedi"],
        ["--diverse", 2],
        ["--with", "en-tr"],
        ["--seed", 0],
        ["--min-p", 0.1],
        ["--repetition", 1.2],
        ["--json", "--alternatives", 2],
    ],
    ids=lambda words: str(words[0]),
)
def test_what_it_cannot_do_is_a_line_and_code_two(words: list[Any]) -> None:
    done = command("translate", "en-tr", MOUSE, *words, "--engine", "ctranslate2")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert done.err.startswith("regard: CTranslate2 cannot")
    assert done.err.endswith("use --engine regard.\n")


# A language model.


PROMPTS = ["red", "the old cat and the sea", "", "big dog", "old"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_writer(tmp_path_factory.mktemp("models") / "writer")


@pytest.fixture(scope="module")
def writer(folder: Path) -> Generator:
    return load_generator(folder)


@pytest.fixture(scope="module")
def their_writer(folder: Path, writer: Generator) -> CTranslate2Generator:
    return CTranslate2Generator(writer, folder)


@pytest.mark.parametrize("beams", [1, 3])
def test_prompts_of_any_length_are_continued_as_ours_are(
    beams: int, writer: Generator, their_writer: CTranslate2Generator
) -> None:
    decode = DecodeConfig(beams=beams, penalty="none")
    first, second = (one.generate_all(PROMPTS, limit=15, decode=decode) for one in (writer, their_writer))
    for (own, *_), (their, *_) in zip(first, second, strict=True):
        assert (their.prompt, their.text, their.tokens, their.ended) == (own.prompt, own.text, own.tokens, own.ended)
        assert (their.log_probability, their.score) == pytest.approx((own.log_probability, own.score), abs=1e-3)
        assert their.steps == pytest.approx(own.steps, abs=1e-3)


def test_without_a_start_token_an_empty_prompt_begins_where_ours_does(tmp_path: Path) -> None:
    place = save_random_writer(tmp_path / "writer", start=False)
    own = load_generator(place)
    first, second = (
        [one.tokens for (one,) in each.generate_all(PROMPTS, limit=15, decode=GREEDY)]
        for each in (own, CTranslate2Generator(own, place))
    )
    assert second == first


def test_a_continuation_that_ends_is_known_to_have_ended(folder: Path, tmp_path: Path) -> None:
    loaded = load(folder)
    assert isinstance(loaded.model, LanguageModel)
    assert loaded.model.output_bias is not None
    with torch.no_grad():
        loaded.model.output_bias[2] = 9.0
    place = save(loaded.model, tmp_path / "short", tokenizer=loaded.tokenizer)
    own = load_generator(place)
    first, second = (
        [(one.tokens, one.ended, len(one.steps)) for (one,) in each.generate_all(PROMPTS, limit=30, decode=GREEDY)]
        for each in (own, CTranslate2Generator(own, place))
    )
    assert any(ended for _, ended, _ in first), "the case is not met"
    assert second == first


def test_a_text_streamed_is_the_text(writer: Generator, their_writer: CTranslate2Generator) -> None:
    pieces = list(their_writer.stream("red", limit=20, decode=GREEDY))
    assert len(pieces) > 1
    assert "".join(pieces) == writer.generate("red", limit=20, decode=GREEDY)


def test_a_streamed_text_ends_before_a_stop(writer: Generator, their_writer: CTranslate2Generator) -> None:
    stop = writer.generate("red", limit=20, decode=GREEDY)[6:8]
    wanted = writer.generate("red", limit=20, decode=GREEDY, stops=[stop])
    assert "".join(their_writer.stream("red", limit=20, decode=GREEDY, stops=[stop])) == wanted
    assert their_writer.generate("red", limit=20, decode=GREEDY, stops=[stop]) == wanted


def test_a_forbidden_word_is_not_written(writer: Generator, their_writer: CTranslate2Generator) -> None:
    wish = make_wish(writer.text, forbidden=["s", "a"])
    first, second = (
        one.generate_all(["red"], limit=20, decode=GREEDY, wish=wish)[0][0].text for one in (writer, their_writer)
    )
    assert first == second
    assert not {"s", "a"} & set(second)


def test_a_text_is_drawn(their_writer: CTranslate2Generator) -> None:
    texts = {one.text for (one,) in their_writer.generate_all(["red"] * 5, limit=20)}
    assert len(texts) > 2


def test_what_it_cannot_do_for_a_continuation_is_refused(their_writer: CTranslate2Generator) -> None:
    for decode, wish, sentence in (
        (GREEDY, Wish(required=((5,),)), "cannot require words"),
        (DecodeConfig(beams=1, sample=True, min_p=0.1), Wish(), "--min-p"),
        (GREEDY, Wish(prefix=(5,)), "at the end of the prompt"),
    ):
        with pytest.raises(UserError, match=sentence):
            their_writer.generate_all(["red"], decode=decode, wish=wish)
    with pytest.raises(UserError, match="stream with one beam"):
        next(their_writer.stream("red", decode=DecodeConfig(beams=2)))
    with pytest.raises(UserError, match="longer than the 1024"):
        their_writer.generate("red", limit=1022)


HEADS = {"layers": 2, "attention": {"heads": 2}, "feed_forward": {"hidden": 24}}
WRITERS: dict[str, dict[str, Any]] = {
    "sinusoidal": {},
    "learned": {"position": {"kind": "learned", "limit": 40}, "embedding": {"scale": False}},
    "rotary": {"position": {"kind": "rotary", "base": 500.0}},
    "rotary, few key heads": {
        "position": {"kind": "rotary"},
        "decoder": HEADS | {"attention": {"heads": 4, "key_heads": 2, "bias": False}},
    },
    "like Llama": {
        "position": {"kind": "rotary"},
        "tie": False,
        "decoder": HEADS
        | {"feed_forward": {"hidden": 24, "activation": "swiglu", "bias": False}, "norm": {"kind": "rms"}},
    },
    "one key head": {"decoder": HEADS | {"attention": {"heads": 4, "key_heads": 1}}},
    "post-norm": {"decoder": HEADS | {"order": "post"}, "embedding": {"norm": {}}},
    "a bias on words": {"output_bias": True, "tie": False},
}


@pytest.mark.parametrize("changes", WRITERS.values(), ids=WRITERS.keys())
def test_every_word_of_a_language_model_has_the_same_probability(changes: dict[str, Any], tmp_path: Path) -> None:
    tokenizer = small_tokenizer()
    torch.manual_seed(1)
    tokens = {"start": 1, "end": 2}
    plain = {"vocabulary": tokenizer.vocabulary, "width": 16, "decoder": HEADS, "tokens": tokens, **changes}
    model = LanguageModelConfig.read(plain).build().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    place = save(model, tmp_path / "writer", tokenizer=tokenizer.tokenizer)
    own = load_generator(place)
    decode = DecodeConfig(beams=1)
    (first,), (second,) = (
        one.generate_all(["red cat"], limit=15, decode=decode)[0] for one in (own, CTranslate2Generator(own, place))
    )
    assert (second.tokens, second.ended) == (first.tokens, first.ended)
    assert second.steps == pytest.approx(first.steps, abs=1e-3)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"position": {"kind": "none"}}, r"position\.kind is 'none'"),
        ({"position": {"kind": "rotary", "scaling": {"kind": "linear", "factor": 2.0}}}, r"position\.scaling\.kind"),
        ({"decoder": HEADS | {"attention": {"heads": 2, "pattern": "sliding(3)"}}}, r"decoder\.attention\.pattern"),
        ({"tokens": {"start": 1}}, r"tokens\.end is not set"),
    ],
    ids=["no positions", "scaled", "a window", "no end"],
)
def test_a_language_model_that_it_cannot_compute_names_the_setting(
    changes: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    tokenizer = small_tokenizer()
    tokens = {"start": 1, "end": 2}
    plain = {"vocabulary": tokenizer.vocabulary, "width": 16, "decoder": HEADS, "tokens": tokens, **changes}
    place = save(LanguageModelConfig.read(plain).build(), tmp_path / "writer", tokenizer=tokenizer.tokenizer)
    with pytest.raises(UserError, match=sentence):
        CTranslate2Generator(load_generator(place), place)


@pytest.mark.parametrize(
    "words", [["red"], ["red", "old"], ["red", "--count", 2]], ids=lambda words: " ".join(map(str, words))
)
def test_the_command_writes_the_same_with_either_engine(words: list[Any], folder: Path) -> None:
    done = command("generate", folder, *words, "--beams", 1, "--length", 12, "--engine", "ctranslate2")
    assert done.code == 0
    assert done.out == command("generate", folder, *words, "--beams", 1, "--length", 12).out


def test_json_of_a_continuation_has_the_same_facts_with_either_engine(folder: Path) -> None:
    first, second = (
        json.loads(command("generate", folder, "red", "--json", "--beams", 1, "--engine", engine).out)
        for engine in ("regard", "ctranslate2")
    )
    assert [token["text"] for token in second["tokens"]] == [token["text"] for token in first["tokens"]]
    assert (second["text"], second["ended"]) == (first["text"], first["ended"])
    assert second["log_probability"] == pytest.approx(first["log_probability"], abs=1e-2)


@pytest.mark.parametrize(
    "words", [["--seed", 0], ["--min-p", 0.1], ["--require", "sun", "--beams", 2], ["--json", "--alternatives", 2]]
)
def test_what_it_cannot_do_for_a_prompt_is_a_line_and_code_two(words: list[Any], folder: Path) -> None:
    done = command("generate", folder, "red", *words, "--engine", "ctranslate2")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert done.err.startswith("regard: CTranslate2 cannot")
