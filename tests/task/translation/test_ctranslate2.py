"""Searching with CTranslate2 gives the same results as regard's search, and refuses unsupported options."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from regard import UserError
from regard.attention import LearnedConfig
from regard.decode import Constraints, DecodeConfig, LengthPenalty
from regard.errors import how_to_install
from regard.interop.ctranslate2 import engine as ctranslate2_engine
from regard.interop.ctranslate2.engine import cached_export, max_text_length
from regard.interop.ctranslate2.export import export_ctranslate2
from regard.model import LanguageModel, LanguageModelConfig
from regard.run import load_model, save_model
from regard.task.constraints import make_constraints
from regard.task.language_modeling.pipeline import TextGenerator
from regard.task.translation.ctranslate2 import CTranslate2Generator, CTranslate2Translator, closest_power, differs
from regard.task.translation.pipeline import Translator
from tests.task.language_modeling.test_pipeline import save_random_writer
from tests.task.small import command, random_model, save_random_model, small_tokenizer
from tests.task.translation.test_pipeline import EVERYDAY

pytest.importorskip("ctranslate2")

GREEDY = DecodeConfig(beam_size=1)
MOUSE = "The cat ate the mouse."


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A separate cache for these tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def ours() -> Translator:
    return Translator.load("en-tr")


@pytest.fixture(scope="module")
def theirs(ours: Translator) -> CTranslate2Translator:
    return CTranslate2Translator(ours, "en-tr")


# Translations


def test_greedy_search_equals_regards(ours: Translator, theirs: CTranslate2Translator) -> None:
    lines = list(EVERYDAY)
    for (own,), (their,) in zip(
        ours.translate_sentences(lines, ours.search(1)),
        theirs.translate_sentences(lines, theirs.search(1)),
        strict=True,
    ):
        assert (their.text, their.tokens, their.ended) == (own.text, own.tokens, own.ended)
        assert their.score == pytest.approx(own.score, abs=1e-3)
        assert their.token_logprobs == pytest.approx(own.token_logprobs, abs=1e-3)


def test_beam_search_equals_regards(ours: Translator, theirs: CTranslate2Translator) -> None:
    lines = list(EVERYDAY)
    for (own, *_), (their, *_) in zip(ours.translate_sentences(lines), theirs.translate_sentences(lines), strict=True):
        assert their.text == own.text
        assert their.score == pytest.approx(own.score, abs=1e-3)


@pytest.mark.parametrize(("kind", "alpha"), [("power", 1.0), ("power", 0.5), ("none", 0.6)])
def test_shared_length_penalty_ranks_equally(
    kind: str, alpha: float, ours: Translator, theirs: CTranslate2Translator
) -> None:
    decode = DecodeConfig.read({"beam_size": 4, "length_penalty": {"kind": kind, "alpha": alpha}})
    (own,), (their,) = (one.translate_sentences([MOUSE], decode) for one in (ours, theirs))
    assert [one.text for one in their[:2]] == [one.text for one in own[:2]]
    assert [one.score for one in their[:2]] == pytest.approx([one.score for one in own[:2]], abs=1e-3)


def test_layout_is_kept(ours: Translator, theirs: CTranslate2Translator) -> None:
    text = f"  {MOUSE}  I drink coffee.\n\n- He forgot his umbrella.\n"
    assert theirs.translate(text, beam_size=1) == ours.translate(text, beam_size=1)


def test_blank_line_stays_blank(theirs: CTranslate2Translator) -> None:
    progress: list[int] = []
    results = theirs.translate_sentences(["", MOUSE, "  "], GREEDY, progress.append)
    assert [best.text for best, *_ in results] == ["", "Kedi fareyi yedi.", ""]
    assert progress == [3]


def test_order_of_lines_is_kept(ours: Translator, theirs: CTranslate2Translator) -> None:
    lines = [line for line in EVERYDAY for _ in range(30)]  # more than fit into one batch
    progress: list[int] = []
    results = theirs.translate_sentences(lines, GREEDY, progress.append)
    assert len(progress) > 1
    assert progress[-1] == len(lines)
    best = {line: ours.translate(line, beam_size=1) for line in EVERYDAY}
    assert [one.text for (one,) in results] == [best[line] for line in lines]


def test_nbest_is_ranked_by_the_models_length_penalty(theirs: CTranslate2Translator) -> None:
    (results,) = theirs.translate_sentences([MOUSE], theirs.search(4))
    assert len({one.text for one in results}) == 4
    scores = [one.score for one in results]
    assert scores == sorted(scores, reverse=True)
    penalty = theirs.decode.length_penalty
    for one in results:
        assert one.score == pytest.approx(one.logprob / penalty.at(len(one.tokens) + one.ended))
        assert one.logprob == pytest.approx(sum(one.token_logprobs))


def test_scores_without_token_logprobs_are_equal(ours: Translator, theirs: CTranslate2Translator) -> None:
    quick = CTranslate2Translator(ours, "en-tr", scored=False)
    (own,), (their,) = (one.translate_sentences([MOUSE], theirs.search(3)) for one in (theirs, quick))
    assert [one.score for one in their] == pytest.approx([one.score for one in own], abs=1e-3)
    assert {one.token_logprobs for one in their} == {()}


def test_output_is_cut_at_the_same_length(tmp_path: Path) -> None:
    """An untrained model seldom predicts EOS; each line of a batch has its own maximum length."""
    place = tmp_path / "small"
    decode = DecodeConfig(beam_size=1, max_length_ratio=1.0, max_length_offset=2)
    tokenizer = small_tokenizer()
    save_model(
        random_model(tokenizer.vocab_size), place, tokenizer=tokenizer.tokenizer, origin={"decode": decode.plain()}
    )
    own = Translator.load(place)
    lines = ["red", "old cat sea sun", "big dog"]
    first = own.translate_sentences(lines)
    second = CTranslate2Translator(own, place, scored=False).translate_sentences(lines)
    assert any(not one.ended for (one,) in first), "the case is not met"
    assert [(one.tokens, one.ended) for (one,) in second] == [(one.tokens, one.ended) for (one,) in first]
    assert [one.score for (one,) in second] == pytest.approx([one.score for (one,) in first], abs=1e-3)


# Constraints


@pytest.mark.parametrize("beam_size", [1, 4])
def test_prefix_is_part_of_output_and_score(beam_size: int, ours: Translator, theirs: CTranslate2Translator) -> None:
    constraints = make_constraints(ours.target_tokenizer, prefix="Fareyi")
    decode = ours.search(beam_size)
    (own,), (their,) = (one.translate_sentences([MOUSE], decode, constraints=constraints) for one in (ours, theirs))
    assert their[0].text == own[0].text
    assert their[0].text.startswith("Fareyi")
    assert their[0].score == pytest.approx(own[0].score, abs=1e-3)


@pytest.mark.parametrize("beam_size", [1, 4])
def test_forbidden_word_does_not_occur(beam_size: int, ours: Translator, theirs: CTranslate2Translator) -> None:
    assert "fareyi" not in theirs.translate(MOUSE, beam_size=beam_size, forbid=["fareyi"])
    forbidden = ["fareyi", "yedi"]
    assert theirs.translate(MOUSE, beam_size=beam_size, forbid=forbidden) == ours.translate(
        MOUSE, beam_size=beam_size, forbid=forbidden
    )


# Sampling


def test_sampling_varies(theirs: CTranslate2Translator) -> None:
    decode = DecodeConfig(beam_size=1, sample=True, temperature=3.0)
    assert len({theirs.translate_sentences([MOUSE], decode)[0][0].text for _ in range(5)}) > 1


@pytest.mark.parametrize("changes", [{"temperature": 0.0}, {"top_k": 1}, {"top_p": 1e-6}])
def test_top_k_of_1_is_greedy(changes: dict[str, Any], theirs: CTranslate2Translator) -> None:
    decode = DecodeConfig.read({"beam_size": 1, "sample": True, **changes})
    assert theirs.translate_sentences([MOUSE], decode)[0][0].text == theirs.translate(MOUSE, beam_size=1)


def test_top_k_above_the_vocabulary_size(theirs: CTranslate2Translator) -> None:
    decode = DecodeConfig(beam_size=1, sample=True, temperature=0.1, top_k=1_000_000)
    assert theirs.translate_sentences([MOUSE], decode)[0][0].text == "Kedi fareyi yedi."


# Unsupported options


REFUSED: dict[str, tuple[DecodeConfig, Constraints, int, str]] = {
    "required words": (GREEDY, Constraints(required=((5,),)), 0, "cannot require words"),
    "groups": (DecodeConfig(beam_size=4, beam_groups=2), Constraints(), 0, "cannot search in beam groups"),
    "alternatives": (GREEDY, Constraints(), 2, "cannot report alternatives"),
    "min_p": (DecodeConfig(beam_size=1, sample=True, min_p=0.1), Constraints(), 0, "--min-p"),
    "repetition": (
        DecodeConfig(beam_size=1, sample=True, repetition_penalty=1.2),
        Constraints(),
        0,
        "repetition penalty",
    ),
    "a seed": (DecodeConfig(beam_size=1, sample=True, seed=3), Constraints(), 0, "sample with a seed"),
}


@pytest.mark.parametrize(("decode", "constraints", "alternatives", "sentence"), REFUSED.values(), ids=REFUSED.keys())
def test_unsupported_search_names_the_alternative(
    decode: DecodeConfig, constraints: Constraints, alternatives: int, sentence: str, theirs: CTranslate2Translator
) -> None:
    with pytest.raises(UserError) as refused:
        theirs.translate_sentences([MOUSE], decode, constraints=constraints, alternatives=alternatives)
    assert sentence in str(refused.value)
    assert str(refused.value).endswith("; leave that out, or use --engine regard.")


def test_contradicting_constraints_are_refused(theirs: CTranslate2Translator) -> None:
    with pytest.raises(UserError, match="is part of the prefix"):
        theirs.translate_sentences([MOUSE], GREEDY, constraints=Constraints(prefix=(5, 6, 7), forbidden=((6, 7),)))
    with pytest.raises(UserError, match="prefix has 300 tokens"):
        theirs.translate_sentences([MOUSE], GREEDY, constraints=Constraints(prefix=(5,) * 300))


def test_ensemble_is_refused(ours: Translator, theirs: CTranslate2Translator) -> None:
    with pytest.raises(UserError, match="CTranslate2 cannot search with an ensemble"):
        theirs.ensemble_with([ours])
    with pytest.raises(UserError, match="CTranslate2 cannot search with an ensemble"):
        CTranslate2Translator(ours.ensemble_with([ours]), "en-tr")


def test_sentence_beyond_the_positions_is_refused(theirs: CTranslate2Translator) -> None:
    with pytest.raises(UserError, match=r"has \d+ tokens and CTranslate2 takes at most 1023: 'cat cat"):
        theirs.translate_sentences(["cat " * 1100], GREEDY)


def test_unknown_device_is_refused(ours: Translator) -> None:
    with pytest.raises(UserError, match="on cpu or cuda, not on meta"):
        CTranslate2Translator(ours, "en-tr", "meta")


def test_missing_package_gives_the_install_command(ours: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(UserError) as refused:
        CTranslate2Translator(ours, "en-tr")
    assert str(refused.value) == (f"CTranslate2 is not installed; {how_to_install('interop')}, or use --engine regard.")


# The length penalty


SAME_AS_THEIRS: list[dict[str, Any]] = [{"kind": "power"}, {"kind": "none"}, {"alpha": 0}]


def test_only_the_gnmt_penalty_is_reported_as_different() -> None:
    sentence = differs(DecodeConfig())
    assert sentence is not None
    assert "length^0.48" in sentence
    assert "\n" not in sentence
    for decode in (GREEDY, *(DecodeConfig(length_penalty=LengthPenalty(**each)) for each in SAME_AS_THEIRS)):
        assert differs(decode) is None


def test_closest_power_matches_the_papers_penalty() -> None:
    """The derivative of the log penalty with respect to the log length, at twenty tokens."""
    decode = DecodeConfig(length_penalty=LengthPenalty(alpha=0.9))
    at = [torch.tensor(decode.length_penalty.at(length)).log() for length in (19, 21)]
    slope = (at[1] - at[0]) / torch.tensor(21 / 19).log()
    assert closest_power(decode) == pytest.approx(float(slope), abs=1e-3)


# The export


def counted(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    calls: list[Path] = []

    def export(folder: Path, out: Path) -> str:
        calls.append(out)
        return export_ctranslate2(folder, out)

    monkeypatch.setattr(ctranslate2_engine, "export_ctranslate2", export)
    return calls


def test_model_is_exported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    place, calls = save_random_model(tmp_path / "small"), counted(monkeypatch)
    first, second = cached_export(place), cached_export(place)
    assert (calls, second) == ([first], first)
    assert first.parent == tmp_path / "cache" / "ctranslate2"
    assert os.listdir(first.parent) == [first.name]


def test_copy_of_a_model_reuses_the_export(tmp_path: Path) -> None:
    first, second = (save_random_model(tmp_path / name) for name in ("one", "two"))
    assert cached_export(first) == cached_export(second)


def test_changed_model_is_exported_again(tmp_path: Path) -> None:
    place = save_random_model(tmp_path / "small")
    first = cached_export(place)
    loaded = load_model(place)
    with torch.no_grad():
        loaded.model.embed_tokens.weight.add_(1)
    save_model(loaded.model, place, tokenizer=loaded.tokenizer, replace=True)
    assert cached_export(place) != first


def test_export_of_another_process_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = save_random_model(tmp_path / "small")
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))

    def slow(folder: Path, out: Path) -> str:
        export_ctranslate2(folder, out)
        return export_ctranslate2(folder, out)  # the other process's export exists by now

    monkeypatch.setattr(ctranslate2_engine, "export_ctranslate2", slow)
    assert (cached_export(place) / "model.bin").is_file()


def test_broken_export_is_named(tmp_path: Path) -> None:
    place = save_random_model(tmp_path / "small")
    kept = cached_export(place)
    (kept / "model.bin").write_bytes(b"nothing")
    with pytest.raises(UserError, match=r"cannot be opened by CTranslate2 .* remove it: it will be exported again"):
        CTranslate2Translator(Translator.load(place), place)


def test_maximum_length_is_that_of_learned_positions() -> None:
    config = LanguageModelConfig(vocab_size=9, width=8, position=LearnedConfig(max_length=30))
    assert max_text_length(config) == 30


# The command


def test_translate_prints_the_same_with_either_engine() -> None:
    words = ("translate", "en-tr", MOUSE, "I drink coffee. He forgot it.", "--beam-size", 1, "--threads", 1)
    done = command(*words, "--engine", "ctranslate2")
    assert (done.code, done.err) == (0, "")
    assert done.out == command(*words, "--engine", "regard").out


def test_command_reports_the_different_penalty() -> None:
    done = command("translate", "en-tr", MOUSE, "--nbest", 3, "--engine", "ctranslate2")
    assert (done.code, done.out.count("\n"), done.err.count("\n")) == (0, 3, 1)
    assert "length penalty" in done.err


def test_json_is_the_same_with_either_engine() -> None:
    first, second = (
        json.loads(command("translate", "en-tr", MOUSE, "--json", "--beam-size", 1, "--engine", engine).out)
        for engine in ("regard", "ctranslate2")
    )
    (own,), (their,) = (facts.pop("sentences") for facts in (first, second))
    assert first == second
    ((one,), (other,)) = own["translations"], their["translations"]
    assert [token["text"] for token in one["tokens"]] == [token["text"] for token in other["tokens"]]
    assert one.keys() == other.keys()
    assert other["logprob"] == pytest.approx(one["logprob"], abs=1e-3)


@pytest.mark.parametrize(
    "words",
    [
        ["--require", "yedi"],
        ["--beam-groups", 2],
        ["--ensemble", "en-tr"],
        ["--seed", 0],
        ["--min-p", 0.1],
        ["--repetition-penalty", 1.2],
        ["--json", "--alternatives", 2],
    ],
    ids=lambda words: str(words[0]),
)
def test_unsupported_option_exits_with_code_2(words: list[Any]) -> None:
    done = command("translate", "en-tr", MOUSE, *words, "--engine", "ctranslate2")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert done.err.startswith("regard: CTranslate2 cannot")
    assert done.err.endswith("use --engine regard.\n")


# Language models


PROMPTS = ["red", "the old cat and the sea", "", "big dog", "old"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_writer(tmp_path_factory.mktemp("models") / "writer")


@pytest.fixture(scope="module")
def writer(folder: Path) -> TextGenerator:
    return TextGenerator.load(folder)


@pytest.fixture(scope="module")
def their_writer(folder: Path, writer: TextGenerator) -> CTranslate2Generator:
    return CTranslate2Generator(writer, folder)


@pytest.mark.parametrize("beam_size", [1, 3])
def test_continuations_equal_regards(beam_size: int, writer: TextGenerator, their_writer: CTranslate2Generator) -> None:
    decode = DecodeConfig(beam_size=beam_size, length_penalty=LengthPenalty(kind="none"))
    first, second = (one.generate_batch(PROMPTS, max_new_tokens=15, decode=decode) for one in (writer, their_writer))
    for (own, *_), (their, *_) in zip(first, second, strict=True):
        assert (their.prompt, their.text, their.tokens, their.ended) == (own.prompt, own.text, own.tokens, own.ended)
        assert (their.logprob, their.score) == pytest.approx((own.logprob, own.score), abs=1e-3)
        assert their.token_logprobs == pytest.approx(own.token_logprobs, abs=1e-3)


def test_empty_prompt_without_bos_equals_regards(tmp_path: Path) -> None:
    place = save_random_writer(tmp_path / "writer", start=False)
    own = TextGenerator.load(place)
    first, second = (
        [one.tokens for (one,) in each.generate_batch(PROMPTS, max_new_tokens=15, decode=GREEDY)]
        for each in (own, CTranslate2Generator(own, place))
    )
    assert second == first


def test_ended_continuations_are_marked(folder: Path, tmp_path: Path) -> None:
    loaded = load_model(folder)
    assert isinstance(loaded.model, LanguageModel)
    assert loaded.model.lm_head_bias is not None
    with torch.no_grad():
        loaded.model.lm_head_bias[2] = 9.0
    place = save_model(loaded.model, tmp_path / "short", tokenizer=loaded.tokenizer)
    own = TextGenerator.load(place)
    first, second = (
        [
            (one.tokens, one.ended, len(one.token_logprobs))
            for (one,) in each.generate_batch(PROMPTS, max_new_tokens=30, decode=GREEDY)
        ]
        for each in (own, CTranslate2Generator(own, place))
    )
    assert any(ended for _, ended, _ in first), "the case is not met"
    assert second == first


def test_streamed_text_equals_generated_text(writer: TextGenerator, their_writer: CTranslate2Generator) -> None:
    pieces = list(their_writer.stream("red", max_new_tokens=20, decode=GREEDY))
    assert len(pieces) > 1
    assert "".join(pieces) == writer.generate("red", max_new_tokens=20, decode=GREEDY)


def test_stream_ends_before_a_stop_string(writer: TextGenerator, their_writer: CTranslate2Generator) -> None:
    stop = writer.generate("red", max_new_tokens=20, decode=GREEDY)[6:8]
    expected = writer.generate("red", max_new_tokens=20, decode=GREEDY, stop=[stop])
    assert "".join(their_writer.stream("red", max_new_tokens=20, decode=GREEDY, stop=[stop])) == expected
    assert their_writer.generate("red", max_new_tokens=20, decode=GREEDY, stop=[stop]) == expected


def test_limits_are_passed_on(ours: Translator, theirs: CTranslate2Translator) -> None:
    plain = theirs.translate_sentences([MOUSE], GREEDY)[0][0]
    for changes in ({"min_length": 20}, {"no_repeat_ngram_size": 1, "min_length": 12}):
        decode = GREEDY.updated(changes | {"max_repeats": 0})
        (own, *_), (their, *_) = (one.translate_sentences([MOUSE], decode)[0] for one in (ours, theirs))
        assert len(plain.tokens) < decode.min_length <= len(their.tokens)
        assert their.tokens == own.tokens
    assert len(set(their.tokens)) == len(their.tokens)


def test_min_length_of_a_continuation(writer: TextGenerator, their_writer: CTranslate2Generator) -> None:
    decode = GREEDY.updated({"min_length": 18, "no_repeat_ngram_size": 2})
    first, second = (
        [one.tokens for (one,) in each.generate_batch(PROMPTS, max_new_tokens=20, decode=decode)]
        for each in (writer, their_writer)
    )
    assert first == second
    assert min(map(len, second)) >= 18


def test_limit_on_repetition_is_refused(theirs: CTranslate2Translator) -> None:
    theirs.translate_sentences([MOUSE], GREEDY.updated({"max_repeats": 0}))
    with pytest.raises(UserError, match="n-gram"):
        theirs.translate_sentences([MOUSE], GREEDY.updated({"max_repeats": 3}))


def test_forbidden_word_is_not_generated(writer: TextGenerator, their_writer: CTranslate2Generator) -> None:
    constraints = make_constraints(writer.tokenizer, forbidden=["s", "a"])
    first, second = (
        one.generate_batch(["red"], max_new_tokens=20, decode=GREEDY, constraints=constraints)[0][0].text
        for one in (writer, their_writer)
    )
    assert first == second
    assert not {"s", "a"} & set(second)


def test_generation_samples(their_writer: CTranslate2Generator) -> None:
    texts = {one.text for (one,) in their_writer.generate_batch(["red"] * 5, max_new_tokens=20)}
    assert len(texts) > 2


def test_unsupported_generation_is_refused(their_writer: CTranslate2Generator) -> None:
    for decode, constraints, sentence in (
        (GREEDY, Constraints(required=((5,),)), "cannot require words"),
        (DecodeConfig(beam_size=1, sample=True, min_p=0.1), Constraints(), "--min-p"),
        (GREEDY, Constraints(prefix=(5,)), "at the end of the prompt"),
    ):
        with pytest.raises(UserError, match=sentence):
            their_writer.generate_batch(["red"], decode=decode, constraints=constraints)
    with pytest.raises(UserError, match="beam size of 1"):
        next(their_writer.stream("red", decode=DecodeConfig(beam_size=2)))
    with pytest.raises(UserError, match="exceeds the 1024"):
        their_writer.generate("red", max_new_tokens=1022)


HEADS = {"layers": 2, "attention": {"heads": 2}, "feed_forward": {"hidden": 24}}
WRITERS: dict[str, dict[str, Any]] = {
    "sinusoidal": {},
    "learned": {"position": {"kind": "learned", "max_length": 40}, "embedding": {"scale": False}},
    "rotary": {"position": {"kind": "rotary", "theta": 500.0}},
    "rotary, few KV heads": {
        "position": {"kind": "rotary"},
        "decoder": HEADS | {"attention": {"heads": 4, "kv_heads": 2, "bias": False}},
    },
    "like Llama": {
        "position": {"kind": "rotary"},
        "tie_weights": False,
        "decoder": HEADS
        | {"feed_forward": {"hidden": 24, "activation": "swiglu", "bias": False}, "norm": {"kind": "rms"}},
    },
    "one key head": {"decoder": HEADS | {"attention": {"heads": 4, "kv_heads": 1}}},
    "post-norm": {"decoder": HEADS | {"norm_position": "post"}, "embedding": {"norm": {}}},
    "a bias on words": {"output_bias": True, "tie_weights": False},
}


@pytest.mark.parametrize("changes", WRITERS.values(), ids=WRITERS.keys())
def test_language_model_logprobs_are_equal(changes: dict[str, Any], tmp_path: Path) -> None:
    tokenizer = small_tokenizer()
    torch.manual_seed(1)
    tokens = {"bos": 1, "eos": 2}
    plain = {"vocab_size": tokenizer.vocab_size, "width": 16, "decoder": HEADS, "special_tokens": tokens, **changes}
    model = LanguageModelConfig.read(plain).build().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    place = save_model(model, tmp_path / "writer", tokenizer=tokenizer.tokenizer)
    own = TextGenerator.load(place)
    decode = DecodeConfig(beam_size=1)
    (first,), (second,) = (
        one.generate_batch(["red cat"], max_new_tokens=15, decode=decode)[0]
        for one in (own, CTranslate2Generator(own, place))
    )
    assert (second.tokens, second.ended) == (first.tokens, first.ended)
    assert second.token_logprobs == pytest.approx(first.token_logprobs, abs=1e-3)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"position": {"kind": "none"}}, r"position\.kind is 'none'"),
        ({"position": {"kind": "rotary", "scaling": {"kind": "linear", "factor": 2.0}}}, r"position\.scaling\.kind"),
        ({"decoder": HEADS | {"attention": {"heads": 2, "pattern": "sliding(3)"}}}, r"decoder\.attention\.pattern"),
        ({"special_tokens": {"bos": 1}}, r"special_tokens\.eos is not set"),
    ],
    ids=["no positions", "scaled", "a window", "no eos"],
)
def test_unsupported_language_model_names_the_setting(changes: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    tokenizer = small_tokenizer()
    tokens = {"bos": 1, "eos": 2}
    plain = {"vocab_size": tokenizer.vocab_size, "width": 16, "decoder": HEADS, "special_tokens": tokens, **changes}
    place = save_model(LanguageModelConfig.read(plain).build(), tmp_path / "writer", tokenizer=tokenizer.tokenizer)
    with pytest.raises(UserError, match=sentence):
        CTranslate2Generator(TextGenerator.load(place), place)


@pytest.mark.parametrize(
    "words", [["red"], ["red", "old"], ["red", "--nbest", 2]], ids=lambda words: " ".join(map(str, words))
)
def test_generate_prints_the_same_with_either_engine(words: list[Any], folder: Path) -> None:
    done = command("generate", folder, *words, "--beam-size", 1, "--max-new-tokens", 12, "--engine", "ctranslate2")
    assert done.code == 0
    assert done.out == command("generate", folder, *words, "--beam-size", 1, "--max-new-tokens", 12).out


def test_generation_json_is_the_same_with_either_engine(folder: Path) -> None:
    first, second = (
        json.loads(command("generate", folder, "red", "--json", "--beam-size", 1, "--engine", engine).out)
        for engine in ("regard", "ctranslate2")
    )
    assert [token["text"] for token in second["tokens"]] == [token["text"] for token in first["tokens"]]
    assert (second["text"], second["ended"]) == (first["text"], first["ended"])
    assert second["logprob"] == pytest.approx(first["logprob"], abs=1e-2)


@pytest.mark.parametrize(
    "words", [["--seed", 0], ["--min-p", 0.1], ["--require", "sun", "--beam-size", 2], ["--json", "--alternatives", 2]]
)
def test_unsupported_generation_exits_with_code_2(words: list[Any], folder: Path) -> None:
    done = command("generate", folder, "red", *words, "--engine", "ctranslate2")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert done.err.startswith("regard: CTranslate2 cannot")
