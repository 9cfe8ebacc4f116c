"""Exported models have the same scores and translations in CTranslate2, and unsupported models are refused."""

import re
import sys

import pytest
import torch
from tokenizers import Tokenizer, models

from regard.errors import UserError, how_to_install
from regard.interop.ctranslate2.export import export_ctranslate2
from regard.task.translation.pipeline import Translator
from tests.interop.huggingface.test_export import SENTENCES, save_ours, stack, translator

ctranslate2 = pytest.importorskip("ctranslate2")

BOS, EOS = 1, 2


def numbered_tokenizer(size):
    """A tokenizer with tokens named after their ids; the last id has no token."""
    return Tokenizer(models.WordLevel({f"w{number}": number for number in range(size - 1)}, unk_token="w3"))


def load_ct2(folder):
    return ctranslate2.Translator(str(folder), inter_threads=1, intra_threads=1)


POST = {"norm_position": "post"}
NO_BIAS = {"attention": {"bias": False}, "feed_forward": {"bias": False}, "norm": {"bias": False}}
GATED = {"feed_forward": {"activation": "swiglu"}}
RMS = {"norm": {"kind": "rms", "eps": 0.05}}
LARGE_EPS = {"norm": {"eps": 0.1}}
LEARNED = {"kind": "learned", "max_length": 40}
OURS = {
    "default": translator(),
    "sinusoidal halves, another theta": translator(position={"kind": "sinusoidal", "layout": "halves", "theta": 500.0}),
    "different stacks, no scale": translator({"layers": 1}, {"attention": {"heads": 4}}, embedding={"scale": False}),
    "untied, output bias": translator(tie_weights=False, output_bias=True),
    "two vocabularies": translator(source_vocab_size=23),
    "no biases": translator(NO_BIAS, NO_BIAS),
    "large eps": translator(LARGE_EPS, LARGE_EPS, embedding=LARGE_EPS),
    "post-norm": translator(POST, POST),
    "post-norm decoder": translator({}, POST),
    "learned, norm": translator(POST, POST, position=LEARNED, embedding={"norm": {}}),
    "shared cross_kv": translator(cross_kv="shared"),
    "rms": translator(RMS, RMS),
    "gated": translator(GATED, GATED),
    "gelu and silu": translator({"feed_forward": {"activation": "gelu"}}, {"feed_forward": {"activation": "silu"}}),
    "geglu and geglu-tanh": translator(
        {"feed_forward": {"activation": "geglu"}}, {"feed_forward": {"activation": "geglu-tanh"}}
    ),
}


@pytest.mark.parametrize("plain", OURS.values(), ids=OURS.keys())
def test_token_logprobs_equal_ctranslate2(plain, tmp_path):
    sizes = plain.get("source_vocab_size", 31), 31
    source, target = (numbered_tokenizer(size) for size in sizes)
    ours = save_ours(plain, tmp_path / "ours", tokenizer=source, target_tokenizer=target)
    export_ctranslate2(tmp_path / "ours", tmp_path / "theirs")
    source_ids, target_ids = torch.randint(4, sizes[0] - 1, (1, 7)), torch.randint(4, 30, (1, 9))
    logits = ours.logits([[*source_ids[0], EOS]], [[BOS, *target_ids[0]]])
    expected = logits.log_softmax(-1)[0].gather(1, torch.tensor([*target_ids[0], EOS])[:, None])[:, 0]
    rows = [[f"w{number}" for number in row] for row in (source_ids[0].tolist(), target_ids[0].tolist())]
    (result,) = load_ct2(tmp_path / "theirs").score_batch([rows[0]], [rows[1]])
    assert result.tokens == [*rows[1], "w2"]
    assert expected.std() > 0.1, "nearly constant probabilities would prove nothing"
    assert (torch.tensor(result.log_probs) - expected).abs().max() < 1e-4


INVALID = {
    "rotary": (translator(position={"kind": "rotary"}), r"position\.kind is 'rotary'"),
    "concatenated positions": (
        translator(position={"kind": "sinusoidal", "combine": "concatenate", "features": 4}, tie_weights=False),
        r"position\.combine is 'concatenate'",
    ),
    "multi-query": (translator({}, {"attention": {"kv_heads": 1}}), r"decoder\.attention\.kv_heads is 1"),
    "wide heads": (translator({"attention": {"head_dim": 5}}), r"encoder\.attention\.head_dim is 5"),
    "sliding window": (
        translator({"attention": {"pattern": "sliding(4)"}}),
        r"encoder\.attention\.pattern is 'sliding\(4\)'",
    ),
    "cosine similarity": (
        translator({}, {"attention": {"similarity": "cosine"}}),
        r"decoder\.attention\.similarity is 'cosine'",
    ),
    "no output projection": (
        translator({"attention": {"output_projection": False}}),
        r"encoder\.attention\.output_projection is False",
    ),
    "no residual": (translator({}, {"residual": False}), r"decoder\.residual is False"),
    "relu2": (translator({"feed_forward": {"activation": "relu2"}}), r"encoder\.feed_forward\.activation is 'relu2'"),
    "different norms": (translator({"norm": {"kind": "rms"}}), r"decoder\.norm\.kind is 'layer'.* rms"),
    "different eps": (translator({"norm": {"eps": 0.1}}), r"decoder\.norm\.eps is 1e-05.* 0\.1"),
    "another eps of the embedding": (translator(embedding=LARGE_EPS), r"embedding\.norm\.eps is 0\.1.* 1e-05"),
    "another eps of a language model's embedding": (
        {"kind": "language-model", "vocab_size": 31, "width": 12, "decoder": stack(), "embedding": LARGE_EPS}
        | {"special_tokens": {"bos": 1, "eos": 2}},
        r"embedding\.norm\.eps is 0\.1.* 1e-05",
    ),
    "another embedding norm": (translator(RMS, RMS, embedding={"norm": {}}), r"embedding\.norm\.kind is 'layer'"),
    "no EOS": (translator(special_tokens={"bos": 1}), r"special_tokens\.eos is not set"),
}


@pytest.mark.parametrize(("plain", "message"), INVALID.values(), ids=INVALID.keys())
def test_setting_without_a_counterpart_is_refused_and_nothing_is_written(plain, message, tmp_path):
    save_ours(plain, tmp_path / "ours", tokenizer=numbered_tokenizer(31))
    with pytest.raises(UserError, match=message) as caught:
        export_ctranslate2(tmp_path / "ours", tmp_path / "theirs")
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["ours"]


def test_language_model_without_a_tokenizer_is_refused(tmp_path):
    save_ours({"kind": "language-model", "vocab_size": 31, "width": 12, "decoder": stack()}, tmp_path / "ours")
    with pytest.raises(UserError, match="ours has no tokenizer"):
        export_ctranslate2(tmp_path / "ours", tmp_path / "theirs")


def test_translator_without_a_tokenizer_is_refused(tmp_path):
    save_ours(translator(), tmp_path / "ours")
    with pytest.raises(UserError, match="ours has no tokenizer"):
        export_ctranslate2(tmp_path / "ours", tmp_path / "theirs")


def test_existing_folder_is_refused(tmp_path):
    with pytest.raises(UserError, match="exists already"):
        export_ctranslate2("en-tr", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_unknown_quantization_is_refused_with_the_known_ones(tmp_path):
    with pytest.raises(UserError, match=r"no quantization 'int4'; choose one of float32, .*int8_float16"):
        export_ctranslate2("en-tr", tmp_path / "theirs", quantization="int4")


def test_missing_package_is_refused_with_the_install_command(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ctranslate2.specs", None)
    with pytest.raises(UserError, match=re.escape(how_to_install("interop"))):
        export_ctranslate2("en-tr", tmp_path / "theirs")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    """The exported pretrained model: our pipeline, and a function that translates with CTranslate2."""
    folder = tmp_path_factory.mktemp("export") / "en-tr"
    assert export_ctranslate2("en-tr", folder) == (
        "exported for CTranslate2 in float32, with its vocabulary of 8,000 tokens."
    )
    tokenizer, theirs = Tokenizer.from_file(str(folder / "tokenizer.json")), load_ct2(folder)

    def translate(texts, **options):
        tokens = [tokenizer.encode(text, add_special_tokens=False).tokens for text in texts]
        results = theirs.translate_batch(tokens, **options)
        return [tokenizer.decode([tokenizer.token_to_id(token) for token in one.hypotheses[0]]) for one in results]

    return Translator.load("en-tr"), translate


@pytest.mark.parametrize(("beam_size", "options"), [(1, {}), (5, {"length_penalty": 0.4})], ids=["greedy", "beam_size"])
def test_pretrained_model_gives_the_same_translations(beam_size, options, pretrained):
    ours, translate = pretrained
    expected = ours.translate_sentences(SENTENCES, ours.search(beam_size))
    assert translate(SENTENCES, beam_size=beam_size, **options) == [translations[0].text for translations in expected]


def test_byte_tokens_are_translated(pretrained):
    ours, translate = pretrained
    texts = ["I like 😀 and ☕.", "naïve café — “quoted”"]
    assert translate(texts, beam_size=1) == [
        translations[0].text for translations in ours.translate_sentences(texts, ours.search(1))
    ]


def test_int8_model_is_smaller_and_translates(tmp_path):
    export_ctranslate2("en-tr", tmp_path / "theirs", quantization="int8")
    assert (tmp_path / "theirs" / "model.bin").stat().st_size < 9_500_000
    tokens = Tokenizer.from_file(str(tmp_path / "theirs" / "tokenizer.json")).encode("I love you.").tokens
    assert load_ct2(tmp_path / "theirs").translate_batch([tokens])[0].hypotheses[0]
