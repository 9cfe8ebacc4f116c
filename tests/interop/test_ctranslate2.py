"""Exported models score and translate in CTranslate2 as they do here, and a model that cannot says why."""

import sys

import pytest
import torch
from tokenizers import Tokenizer, models

from regard.errors import UserError
from regard.interop.ctranslate2 import export_ctranslate2
from regard.task.translator import load_translator

from .huggingface.test_export import SENTENCES, save_ours, stack, translator

ctranslate2 = pytest.importorskip("ctranslate2")

START, END = 1, 2


def numbered(size):
    """A tokenizer whose tokens are named after their ids, the last of which it does not know."""
    return Tokenizer(models.WordLevel({f"w{number}": number for number in range(size - 1)}, unk_token="w3"))


def opened(folder):
    return ctranslate2.Translator(str(folder), inter_threads=1, intra_threads=1)


POST = {"order": "post"}
NO_BIAS = {"attention": {"bias": False}, "feed_forward": {"bias": False}, "norm": {"bias": False}}
GATED = {"feed_forward": {"activation": "swiglu"}}
RMS = {"norm": {"kind": "rms", "epsilon": 0.05}}
COARSE = {"norm": {"epsilon": 0.1}}
LEARNED = {"kind": "learned", "limit": 40}
OURS = {
    "our own translator": translator(),
    "sinusoids in halves, another base": translator(position={"kind": "sinusoidal", "layout": "halves", "base": 500.0}),
    "unlike stacks, no scale": translator({"layers": 1}, {"attention": {"heads": 4}}, embedding={"scale": False}),
    "untied, bias on words": translator(tie=False, output_bias=True),
    "two vocabularies": translator(source_vocabulary=23),
    "no biases": translator(NO_BIAS, NO_BIAS),
    "coarse norms": translator(COARSE, COARSE),
    "post-norm": translator(POST, POST),
    "post-norm decoder alone": translator({}, POST),
    "learned, norm": translator(POST, POST, position=LEARNED, embedding={"norm": {}}),
    "one memory": translator(memory="shared"),
    "rms": translator(RMS, RMS),
    "gated": translator(GATED, GATED),
    "gelu and silu": translator({"feed_forward": {"activation": "gelu"}}, {"feed_forward": {"activation": "silu"}}),
    "both kinds of gated gelu": translator(
        {"feed_forward": {"activation": "geglu"}}, {"feed_forward": {"activation": "geglu-tanh"}}
    ),
}


@pytest.mark.parametrize("plain", OURS.values(), ids=OURS.keys())
def test_every_word_has_the_same_probability(plain, tmp_path):
    words = plain.get("source_vocabulary", 31), 31
    source, target = (numbered(size) for size in words)
    ours = save_ours(plain, tmp_path / "ours", tokenizer=source, target_tokenizer=target)
    export_ctranslate2(tmp_path / "ours", tmp_path / "theirs")
    read, written = torch.randint(4, words[0] - 1, (1, 7)), torch.randint(4, 30, (1, 9))
    logits = ours.logits([[*read[0], END]], [[START, *written[0]]])
    expected = logits.log_softmax(-1)[0].gather(1, torch.tensor([*written[0], END])[:, None])[:, 0]
    rows = [[f"w{number}" for number in row] for row in (read[0].tolist(), written[0].tolist())]
    (found,) = opened(tmp_path / "theirs").score_batch([rows[0]], [rows[1]])
    assert found.tokens == [*rows[1], "w2"]
    assert expected.std() > 0.1, "probabilities without spread would agree with anything"
    assert (torch.tensor(found.log_probs) - expected).abs().max() < 1e-4


WRONG = {
    "rotary": (translator(position={"kind": "rotary"}), r"position\.kind is 'rotary'"),
    "beside the words": (
        translator(position={"kind": "sinusoidal", "join": "concatenate", "features": 4}, tie=False),
        r"position\.join is 'concatenate'",
    ),
    "few key heads": (translator({}, {"attention": {"key_heads": 1}}), r"decoder\.attention\.key_heads is 1"),
    "wide heads": (translator({"attention": {"head_width": 5}}), r"encoder\.attention\.head_width is 5"),
    "a window": (
        translator({"attention": {"pattern": "sliding(4)"}}),
        r"encoder\.attention\.pattern is 'sliding\(4\)'",
    ),
    "cosines": (translator({}, {"attention": {"similarity": "cosine"}}), r"decoder\.attention\.similarity is 'cosine'"),
    "no output projection": (translator({"attention": {"output": False}}), r"encoder\.attention\.output is False"),
    "no residual": (translator({}, {"order": "none"}), r"decoder\.order is 'none'.* pre or post"),
    "squares": (translator({"feed_forward": {"activation": "relu2"}}), r"encoder\.feed_forward\.activation is 'relu2'"),
    "unlike norms": (translator({"norm": {"kind": "rms"}}), r"decoder\.norm\.kind is 'layer'.* rms"),
    "unlike epsilons": (translator({"norm": {"epsilon": 0.1}}), r"decoder\.norm\.epsilon is 1e-05.* 0\.1"),
    "unlike norm of the words": (translator(RMS, RMS, embedding={"norm": {}}), r"embedding\.norm\.kind is 'layer'"),
    "no end": (translator(tokens={"start": 1}), r"tokens\.end is not set"),
}


@pytest.mark.parametrize(("plain", "sentence"), WRONG.values(), ids=WRONG.keys())
def test_a_setting_without_a_counterpart_is_named_and_nothing_is_written(plain, sentence, tmp_path):
    save_ours(plain, tmp_path / "ours", tokenizer=numbered(31))
    with pytest.raises(UserError, match=sentence) as caught:
        export_ctranslate2(tmp_path / "ours", tmp_path / "theirs")
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["ours"]


def test_a_language_model_without_a_tokenizer_is_refused(tmp_path):
    save_ours({"kind": "language-model", "vocabulary": 31, "width": 12, "decoder": stack()}, tmp_path / "ours")
    with pytest.raises(UserError, match="ours has no tokenizer"):
        export_ctranslate2(tmp_path / "ours", tmp_path / "theirs")


def test_a_model_without_a_tokenizer_is_refused(tmp_path):
    save_ours(translator(), tmp_path / "ours")
    with pytest.raises(UserError, match="ours has no tokenizer"):
        export_ctranslate2(tmp_path / "ours", tmp_path / "theirs")


def test_a_folder_that_exists_is_left_alone(tmp_path):
    with pytest.raises(UserError, match="exists already"):
        export_ctranslate2("en-tr", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_quantization_is_refused_with_those_there_are(tmp_path):
    with pytest.raises(UserError, match=r"no quantization 'int4'; choose one of float32, .*int8_float16"):
        export_ctranslate2("en-tr", tmp_path / "theirs", quantization="int4")


def test_without_their_package_the_way_to_get_it_is_told(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ctranslate2.specs", None)
    with pytest.raises(UserError, match="pip install ctranslate2"):
        export_ctranslate2("en-tr", tmp_path / "theirs")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def shipped(tmp_path_factory):
    """The model that ships, exported: our own, and a function that translates with theirs."""
    folder = tmp_path_factory.mktemp("export") / "en-tr"
    assert export_ctranslate2("en-tr", folder) == (
        "exported for CTranslate2 in float32, with its vocabulary of 8,000 words."
    )
    tokenizer, theirs = Tokenizer.from_file(str(folder / "tokenizer.json")), opened(folder)

    def translate(texts, **options):
        tokens = [tokenizer.encode(text, add_special_tokens=False).tokens for text in texts]
        results = theirs.translate_batch(tokens, **options)
        return [tokenizer.decode([tokenizer.token_to_id(token) for token in one.hypotheses[0]]) for one in results]

    return load_translator("en-tr"), translate


@pytest.mark.parametrize(("beams", "options"), [(1, {}), (5, {"length_penalty": 0.4})], ids=["greedy", "beams"])
def test_the_shipped_model_translates_as_here(beams, options, shipped):
    ours, translate = shipped
    expected = ours.translate_sentences(SENTENCES, ours.search(beams))
    assert translate(SENTENCES, beam_size=beams, **options) == [translations[0].text for translations in expected]


def test_bytes_outside_any_word_are_translated_too(shipped):
    ours, translate = shipped
    texts = ["I like 😀 and ☕.", "naïve café — “quoted”"]
    assert translate(texts, beam_size=1) == [found[0].text for found in ours.translate_sentences(texts, ours.search(1))]


def test_a_rounded_model_is_smaller_and_still_translates(tmp_path):
    export_ctranslate2("en-tr", tmp_path / "theirs", quantization="int8")
    assert (tmp_path / "theirs" / "model.bin").stat().st_size < 9_500_000
    tokens = Tokenizer.from_file(str(tmp_path / "theirs" / "tokenizer.json")).encode("I love you.").tokens
    assert opened(tmp_path / "theirs").translate_batch([tokens])[0].hypotheses[0]
