"""Exported models have the same logits in transformers, and unsupported models are refused."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    AutoImageProcessor,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    ViTForImageClassification,
    ViTModel,
)

import regard
from regard.data.tokenizers.tokenizer import SPECIAL_NAMES
from regard.errors import UserError
from regard.interop import export_ctranslate2, import_huggingface
from regard.interop.huggingface.export import export_huggingface
from regard.model import EncoderConfig, LanguageModelConfig, VisionTransformerConfig, read_any_config, read_config
from regard.run import find_model, save_model
from regard.task.language_modeling.pipeline import TextGenerator
from regard.task.translation.pipeline import Translator
from tests.interop.huggingface import test_rope
from tests.interop.huggingface.architectures import (
    test_bart,
    test_bert,
    test_gpt2,
    test_llama,
    test_marian,
    test_mistral,
    test_vit,
)
from tests.interop.huggingface.support import edit_json, ids

BOUND = 1e-5
"""The largest allowed difference between logits after a round trip."""
SENTENCES = [
    "The cat ate the mouse.",
    "I love you.",
    "Where is the nearest station?",
    "She has never been to Istanbul.",
    "It was raining all day, so we stayed at home.",
    "Tom doesn't know what to do.",
    "How much does this book cost?",
    "My brother is taller than me.",
    "We should leave before it gets dark.",
    "He asked me if I could help him.",
    "The children are playing in the garden.",
    "I would like a cup of tea, please.",
    "What time does the train leave?",
    "They bought a new house last year.",
    "Don't forget to close the window.",
    "I've been learning Turkish for two years.",
    "This is the best film I have ever seen.",
    "Nobody knew the answer to the question.",
    "Mary said that she was tired.",
    "If I had money, I would buy a car.",
]


MODEL_CLASSES = {
    kind.__name__: kind
    for kind in (
        BertModel,
        BertForMaskedLM,
        BertForSequenceClassification,
        BertForTokenClassification,
        ViTModel,
        ViTForImageClassification,
    )
}


def load_hf(directory):
    """Load a model with transformers, without missing or unexpected tensors."""
    hf_config = json.loads((directory / "config.json").read_text())
    kind = hf_config["model_type"]
    model_class = AutoModelForCausalLM if kind in ("gpt2", "llama", "mistral") else AutoModelForSeq2SeqLM
    model_class = MODEL_CLASSES.get(hf_config["architectures"][0], model_class)
    model, info = model_class.from_pretrained(directory, use_safetensors=True, output_loading_info=True)
    sinusoids = (
        {f"model.{side}.embed_positions.weight" for side in ("encoder", "decoder")} if kind == "marian" else set()
    )
    assert set(info["missing_keys"]) <= sinusoids
    assert not info["unexpected_keys"]
    assert not info["mismatched_keys"]
    return model.eval()


@torch.no_grad()
def hf_logits(model, length=11):
    """Outputs of a transformers model on fixed inputs."""
    config = model.config
    if isinstance(model, ViTModel | ViTForImageClassification):
        size = config.image_size if isinstance(config.image_size, list | tuple) else [config.image_size] * 2
        return test_vit.hf_output(model, test_vit.pixels(model, *size))
    if config.model_type == "bert":
        token_types = ids(2, length, config.type_vocab_size, seed=2)
        return test_bert.hf_output(model, ids(2, length, config.vocab_size), token_type_ids=token_types)
    if not config.is_encoder_decoder:
        return model(ids(2, length, config.vocab_size)).logits
    mask = (torch.arange(7) < torch.tensor([[7], [4]])).long()
    target_vocab_size = getattr(config, "decoder_vocab_size", None) or config.vocab_size
    return model(
        ids(2, 7, config.vocab_size), attention_mask=mask, decoder_input_ids=ids(2, 8, target_vocab_size, seed=2)
    ).logits


def round_trip(directory, tmp_path):
    import_huggingface(directory, tmp_path / "ours")
    export_huggingface(tmp_path / "ours", tmp_path / "back")
    return tmp_path / "back"


ROUND_TRIPS = {
    f"{module.__name__.rpartition('_')[2]}: {name}": (module.build, changes)
    for module in (test_marian, test_bart, test_gpt2, test_llama, test_mistral, test_bert, test_vit)
    for name, changes in module.VARIANTS.items()
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("build", "changes"), ROUND_TRIPS.values(), ids=ROUND_TRIPS.keys())
def test_round_trip_preserves_the_logits(build, changes, save_hf, tmp_path, equal_tensors):
    theirs = build(changes)
    back = load_hf(round_trip(save_hf(theirs), tmp_path))
    assert type(back) is type(theirs)
    equal_tensors(hf_logits(back), hf_logits(theirs), bound=BOUND)


COMPLETE = ("mistral", "bert", "vit")
EXACT = {name: case for name, case in ROUND_TRIPS.items() if name.startswith(COMPLETE)} | {
    "marian": (test_marian.build, {}),
    "bart": (test_bart.build, {}),
    "gpt2": (test_gpt2.build, {}),
    "llama": (test_llama.build, {}),
}


@pytest.mark.parametrize(("build", "changes"), EXACT.values(), ids=EXACT.keys())
def test_round_trip_preserves_every_tensor(build, changes, save_hf, tmp_path):
    directory = save_hf(build(changes))
    back = load_file(round_trip(directory, tmp_path) / "model.safetensors")
    before = load_file(directory / "model.safetensors")
    position_tables = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")
    assert back.keys() == before.keys()
    if "cls.predictions.decoder.bias" in before:  # then the other bias is ignored
        before["cls.predictions.bias"] = before["cls.predictions.decoder.bias"]
    for name, tensor in before.items():
        first = 2 if name in position_tables else 0  # BART never reads the first rows
        assert torch.equal(back[name][first:], tensor[first:])


def test_round_trip_preserves_half_precision(save_hf, tmp_path):
    back = round_trip(save_hf(test_bart.build({}).to(torch.bfloat16)), tmp_path)
    assert {tensor.dtype for tensor in load_file(back / "model.safetensors").values()} == {torch.bfloat16}
    assert load_hf(back).dtype == torch.bfloat16


@pytest.mark.parametrize(
    "build",
    [test_marian.build, test_bart.build, test_gpt2.build, test_llama.build],
    ids=["marian", "bart", "gpt2", "llama"],
)
def test_round_trip_preserves_the_token_ids(build, save_hf, tmp_path):
    directory = save_hf(build({"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}))
    tokenizer = Tokenizer.from_file(str(find_model("en-tr") / "tokenizer.json"))
    eos = SPECIAL_NAMES["eos"]
    tokenizer.post_processor = processors.TemplateProcessing(single=f"$A {eos}", special_tokens=[(eos, 2)])
    tokenizer.save(str(directory / "tokenizer.json"))
    back = AutoTokenizer.from_pretrained(round_trip(directory, tmp_path))
    for text in SENTENCES:
        assert back(text)["input_ids"] == tokenizer.encode(text).ids
    assert (back.pad_token_id, back.bos_token_id, back.eos_token_id) == (0, 1, 2)


@pytest.mark.parametrize("kind", test_rope.ROPE_TYPES)
def test_round_trip_preserves_rope_scaling(kind, save_hf, tmp_path, equal_tensors):
    theirs = test_rope.build(kind)
    back = load_hf(round_trip(save_hf(theirs), tmp_path))
    equal_tensors(hf_logits(back, length=24), hf_logits(theirs, length=24), bound=BOUND)


@pytest.mark.parametrize("kind", test_rope.ROPE_TYPES)
def test_rope_scaling_is_exported_from_our_config(kind, save_hf, tmp_path, equal_tensors):
    theirs = test_rope.build(kind)
    import_huggingface(save_hf(theirs), tmp_path / "ours")
    edit_json(tmp_path / "ours" / "run.json", origin={})
    export_huggingface(tmp_path / "ours", tmp_path / "back")
    equal_tensors(hf_logits(load_hf(tmp_path / "back"), length=24), hf_logits(theirs, length=24), bound=BOUND)


def test_round_trip_preserves_the_generation_config(save_hf, tmp_path):
    directory = save_hf(test_llama.build({}), eos_token_id=None)
    edit_json(directory / "generation_config.json", eos_token_id=[5, 9], top_p=0.7)
    back = round_trip(directory, tmp_path)
    exported = json.loads((back / "generation_config.json").read_text())
    assert exported == json.loads((directory / "generation_config.json").read_text())


def stack(**changes):
    attention = {"heads": 3} | changes.pop("attention", {})
    feed_forward = {"hidden": 20} | changes.pop("feed_forward", {})
    return {"layers": 2, "attention": attention, "feed_forward": feed_forward, **changes}


def translator(encoder=None, decoder=None, **changes):
    tokens = {"pad": 0, "bos": 1, "eos": 2}
    stacks = {"encoder": stack(**(encoder or {})), "decoder": stack(**(decoder or {}))}
    return {
        "kind": "encoder-decoder",
        "vocab_size": 31,
        "width": 12,
        "special_tokens": tokens,
        **stacks,
        **changes,
    }


def language_model(decoder=None, **changes):
    return {"kind": "language-model", "vocab_size": 31, "width": 12, "decoder": stack(**(decoder or {})), **changes}


POST = {"norm_position": "post"}
NO_BIAS = {"attention": {"bias": False}, "feed_forward": {"bias": False}, "norm": {"bias": False}}
LEARNED = {"kind": "learned", "max_length": 40}
LLAMA = {"norm": {"kind": "rms"}, "feed_forward": {"activation": "swiglu", "bias": False}}
PLAIN = {"scale": False}
OURS = {
    "default": ("Pegasus", translator()),
    "sinusoidal halves": ("Pegasus", translator(position={"kind": "sinusoidal", "layout": "halves"})),
    "odd width": ("Pegasus", translator(width=15)),
    "different stacks, no scale": ("Pegasus", translator({"layers": 1}, {"attention": {"heads": 2}}, embedding=PLAIN)),
    "untied, output bias": ("Pegasus", translator(tie_weights=False, output_bias=True)),
    "no biases": ("Pegasus", translator(NO_BIAS, NO_BIAS)),
    "gelu": ("Pegasus", translator(*[{"feed_forward": {"activation": "gelu-tanh"}}] * 2)),
    "post-norm": ("Marian", translator(POST, POST)),
    "post-norm, two vocabularies": ("Marian", translator(POST, POST, source_vocab_size=23)),
    "post-norm, three embeddings": ("Marian", translator(POST, POST, source_vocab_size=23, tie_weights=False)),
    "learned, norm": ("Bart", translator(POST, POST, position=LEARNED, embedding={"norm": {}})),
    "language model, learned": ("GPT2", language_model(position=LEARNED, embedding=PLAIN, tie_weights=False)),
    "language model, no biases": ("GPT2", language_model(NO_BIAS, position=LEARNED, embedding=PLAIN)),
    "language model, rotary": (
        "Llama",
        language_model(LLAMA, position={"kind": "rotary", "theta": 500.0}, embedding=PLAIN),
    ),
}


def save_ours(plain, folder, **tokenizers):
    """Save a model with random weights, none of which are zero or equal, and load it."""
    torch.manual_seed(0)
    model = read_config(plain).build()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.25 + ("norm.weight" in name))
    save_model(model, folder, **tokenizers)
    return regard.load(folder)


@pytest.mark.parametrize(("name", "plain"), OURS.values(), ids=OURS.keys())
def test_exported_model_has_the_same_logits(name, plain, tmp_path, equal_tensors):
    ours = save_ours(plain, tmp_path / "ours")
    export_huggingface(tmp_path / "ours", tmp_path / "theirs")
    theirs = load_hf(tmp_path / "theirs")
    assert type(theirs).__name__.startswith(name)
    if isinstance(ours.config, LanguageModelConfig):
        equal_tensors(ours.logits(ids(2, 11, 31)), hf_logits(theirs))
    else:
        rows = ids(2, 7, ours.config.source_vocab_size or 31), ids(2, 8, 31, seed=2)
        equal_tensors(ours.logits(*rows, lengths=[7, 4]), hf_logits(theirs))


GATED = {"feed_forward": {"activation": "swiglu"}}
INVALID = {
    "gated": (translator(GATED, GATED), r"decoder\.feed_forward\.activation is 'swiglu'.* Pegasus"),
    "different activations": (
        translator({"feed_forward": {"activation": "gelu"}}),
        r"encoder\.feed_forward\.activation is 'gelu'",
    ),
    "multi-query": (translator({}, {"attention": {"kv_heads": 1}}), r"decoder\.attention\.kv_heads is 1"),
    "wide heads": (translator({"attention": {"head_dim": 5}}), r"encoder\.attention\.head_dim is 5"),
    "sliding window": (
        translator({"attention": {"pattern": "sliding(4)"}}),
        r"encoder\.attention\.pattern is 'sliding\(4\)'",
    ),
    "rms": (translator({"norm": {"kind": "rms"}}), r"encoder\.norm\.kind is 'rms'"),
    "small eps": (translator({"norm": {"eps": 1e-6}}), r"encoder\.norm\.eps is 1e-06"),
    "rotary": (translator(position={"kind": "rotary"}), r"position\.kind is 'rotary'"),
    "another theta": (translator(position={"kind": "sinusoidal", "theta": 500.0}), r"position\.theta is 500"),
    "concatenated positions": (
        translator(position={"kind": "sinusoidal", "combine": "concatenate", "features": 4}, tie_weights=False),
        r"position\.combine is 'concatenate'",
    ),
    "shared cross_kv": (translator(cross_kv="shared"), r"cross_kv is 'shared'"),
    "two vocabularies": (translator(source_vocab_size=23), r"source_vocab_size is 23.*one vocabulary"),
    "mixed norm positions": (translator(POST), r"encoder\.norm_position is 'post'"),
    "no residual": (translator({}, {"residual": False}), r"decoder\.residual is False"),
    "embedding norm": (translator(embedding={"norm": {}}), r"embedding\.norm"),
    "no output projection": (
        translator({"attention": {"output_projection": False}}),
        r"encoder\.attention\.output_projection is False",
    ),
    "cosine similarity": (
        translator({}, {"attention": {"similarity": "cosine"}}),
        r"decoder\.attention\.similarity is 'cosine'",
    ),
    "scaled embeddings": (language_model(position=LEARNED), r"embedding\.scale is True.*GPT-2"),
    "sinusoidal positions": (language_model(embedding=PLAIN), r"position\.kind is 'sinusoidal'.*GPT-2.*'learned'"),
    "rms norm without gate": (language_model({"norm": {"kind": "rms"}}), r"activation is 'relu'.*Llama"),
}


@pytest.mark.parametrize(("plain", "message"), INVALID.values(), ids=INVALID.keys())
def test_setting_without_a_counterpart_is_refused_and_nothing_is_written(plain, message, tmp_path):
    save_ours(plain, tmp_path / "ours")
    with pytest.raises(UserError, match=message) as caught:
        export_huggingface(tmp_path / "ours", tmp_path / "theirs")
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["ours"]


def test_existing_folder_is_refused(tmp_path):
    with pytest.raises(UserError, match="exists already"):
        export_huggingface("en-tr", tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    """The exported pretrained model: our pipeline, the transformers model and its tokenizer."""
    out = tmp_path_factory.mktemp("export") / "en-tr"
    description = export_huggingface("en-tr", out)
    assert description == (
        "exported as PegasusForConditionalGeneration with 7,584,000 parameters in float16, with its tokenizer."
    )
    return Translator.load("en-tr"), load_hf(out), AutoTokenizer.from_pretrained(out)


def test_pretrained_model_has_the_same_logits_in_float32(pretrained, equal_tensors):
    ours, theirs, tokenizer = pretrained
    assert theirs.dtype == torch.float32
    batch = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    target = ids(len(SENTENCES), 15, 8000)
    with torch.no_grad():
        expected = theirs(**batch, decoder_input_ids=target).logits
    equal_tensors(ours.logits(batch["input_ids"], target, lengths=batch["attention_mask"].sum(1)), expected)


def test_pretrained_tokenizer_has_the_same_ids_and_treats_special_names_as_text(pretrained):
    ours, _, tokenizer = pretrained
    for text in (*SENTENCES, "Çok güzel! 😀  iki  boşluk", f"{SPECIAL_NAMES['eos']} is text"):
        assert tokenizer(text)["input_ids"] == [*ours.source_tokenizer.encode(text), 2]
    assert (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1, 2)


@pytest.mark.parametrize("beam_size", [1, 5])
def test_pretrained_model_gives_the_same_translations(beam_size, pretrained):
    ours, theirs, tokenizer = pretrained
    batch = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    texts = tokenizer.decode(theirs.generate(**batch, num_beams=beam_size), skip_special_tokens=True)
    expected = ours.translate_sentences(SENTENCES, ours.search(beam_size))
    assert texts == [translations[0].text for translations in expected]


def test_generation_config_has_the_model_s_search_settings(pretrained):
    hf_config = pretrained[1].generation_config
    assert (hf_config.num_beams, hf_config.length_penalty, hf_config.decoder_start_token_id) == (5, 0.4, 1)
    assert hf_config.forced_eos_token_id is None


@pytest.mark.parametrize(("penalty", "expected"), [("power", 0.6), ("none", 0.0)])
def test_power_length_penalty_is_exported_exactly(penalty, expected, tmp_path):
    shutil.copytree(find_model("en-tr"), tmp_path / "ours")
    metadata = json.loads((tmp_path / "ours" / "run.json").read_text())
    edit_json(
        tmp_path / "ours" / "run.json",
        origin={"decode": metadata["origin"]["decode"] | {"length_penalty": {"kind": penalty, "alpha": 0.6}}},
    )
    export_huggingface(tmp_path / "ours", tmp_path / "theirs")
    assert json.loads((tmp_path / "theirs" / "generation_config.json").read_text())["length_penalty"] == expected


def word_tokenizer(*names):
    tokenizer = Tokenizer(models.WordLevel({name: number for number, name in enumerate(names)}, unk_token=names[3]))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(list(names[:4]))
    return tokenizer


def test_target_tokenizer_is_exported_to_its_own_folder(tmp_path):
    model = read_config(translator(POST, POST, source_vocab_size=23)).build()
    names = [SPECIAL_NAMES[role] for role in ("pad", "bos", "eos", "unk")]
    tokenizers = [word_tokenizer(*names, word) for word in ("cat", "kedi")]
    save_model(model, tmp_path / "ours", tokenizer=tokenizers[0], target_tokenizer=tokenizers[1])
    export_huggingface(tmp_path / "ours", tmp_path / "theirs")
    source, target = (
        AutoTokenizer.from_pretrained(tmp_path / "theirs" / folder) for folder in ("", "target_tokenizer")
    )
    assert source("cat kedi")["input_ids"] == [4, 3, 2]
    assert target("cat kedi")["input_ids"] == [3, 4, 2]
    assert (source.unk_token_id, target.eos_token_id) == (3, 2)


@pytest.mark.parametrize("bos", [1, None])
def test_prompt_starts_with_bos_as_in_our_pipeline(bos, tmp_path):
    """If the model has a BOS token; and also after importing it again."""
    tokens = {"pad": 0, "bos": bos, "eos": 2}
    names = [SPECIAL_NAMES[role] for role in ("pad", "bos", "eos", "unk")]
    model = read_config(language_model(position=LEARNED, embedding=PLAIN, special_tokens=tokens)).build()
    save_model(model, tmp_path / "ours", tokenizer=word_tokenizer(*names, "cat"))
    export_huggingface(tmp_path / "ours", tmp_path / "theirs")
    import_huggingface(tmp_path / "theirs", tmp_path / "back")
    expected = [4, 4] if bos is None else [bos, 4, 4]
    assert AutoTokenizer.from_pretrained(tmp_path / "theirs")("cat cat")["input_ids"] == expected
    for name in ("ours", "back"):
        generator = TextGenerator.load(tmp_path / name)
        assert generator.prompt_ids(generator.tokenizer.encode("cat cat")) == expected


# Encoders and vision transformers


def encoder(**changes):
    stacks = {"encoder": stack(norm_position="post", norm={"eps": 1e-6}, **changes.pop("encoder", {}))}
    return {
        "kind": "encoder",
        "vocab_size": 31,
        "width": 12,
        "position": LEARNED,
        "embedding": {"scale": False, "norm": {"eps": 1e-6}},
        **stacks,
        **changes,
    }


def vision_transformer(**changes):
    return {
        "kind": "vision",
        "image_size": 8,
        "patch_size": 4,
        "width": 12,
        "classes": 3,
        "encoder": stack(),
        **changes,
    }


SMALL_EPS = {"eps": 1e-6}
ENCODERS = {
    "no head, no token types": (BertModel, encoder(pooler=True)),
    "masked LM": (
        BertForMaskedLM,
        encoder(head={"kind": "masked_lm", "activation": "relu", "norm": SMALL_EPS}, token_types=2),
    ),
    "masked LM, untied, no biases": (
        BertForMaskedLM,
        encoder(
            head={"kind": "masked_lm", "activation": "relu", "norm": SMALL_EPS, "tie_weights": False, "bias": False},
            encoder={"attention": {"bias": False}, "feed_forward": {"bias": False}},
        ),
    ),
    "sequence classification": (
        BertForSequenceClassification,
        encoder(head={"kind": "classification", "labels": ["a", "b", "c"], "pooling": "pooler"}, pooler=True),
    ),
    "token classification": (
        BertForTokenClassification,
        encoder(head={"kind": "token_classification", "labels": ["a", "b"]}),
    ),
    "unnamed classes": (ViTForImageClassification, vision_transformer()),
    "named classes, wide images, no biases": (
        ViTForImageClassification,
        vision_transformer(
            classes=["a", "b"], image_size=[4, 12], encoder=stack(attention={"bias": False}), channels=1
        ),
    ),
    "no classes": (ViTModel, vision_transformer(classes=0, representation_size=5)),
}


def save_encoder(plain, folder):
    torch.manual_seed(0)
    model = read_any_config(plain).build()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.25 + ("norm.weight" in name))
    save_model(model, folder)
    return regard.load(folder)


@pytest.mark.parametrize(("kind", "plain"), ENCODERS.values(), ids=ENCODERS.keys())
@torch.no_grad()
def test_exported_encoder_has_the_same_outputs(kind, plain, tmp_path, equal_tensors):
    ours = save_encoder(plain, tmp_path / "ours")
    export_huggingface(tmp_path / "ours", tmp_path / "theirs")
    theirs = load_hf(tmp_path / "theirs")
    assert type(theirs) is kind
    if isinstance(ours.config, VisionTransformerConfig):
        equal_tensors(ours.logits(test_vit.pixels(theirs, *ours.config.size)), hf_logits(theirs))
        processor = AutoImageProcessor.from_pretrained(tmp_path / "theirs")
        assert (processor.size["height"], processor.size["width"]) == ours.config.size
        assert list(processor.image_mean) == [0.5] * ours.config.channels
    else:
        assert isinstance(ours.config, EncoderConfig)
        token_types = ids(2, 11, ours.config.token_types or 1, seed=2) if ours.config.token_types else None
        equal_tensors(ours.model(ids(2, 11, 31), token_types=token_types), hf_logits(theirs))


@pytest.mark.parametrize("labels", [["a", "b", "c"]])
def test_round_trip_preserves_the_labels(labels, tmp_path):
    save_encoder(encoder(head={"kind": "token_classification", "labels": labels}), tmp_path / "ours")
    export_huggingface(tmp_path / "ours", tmp_path / "theirs")
    import_huggingface(tmp_path / "theirs", tmp_path / "back")
    assert list(load_hf(tmp_path / "theirs").config.id2label.values()) == labels
    assert regard.load(tmp_path / "back").config == regard.load(tmp_path / "ours").config.model_copy(
        update={"token_types": 1, "embedding": regard.load(tmp_path / "back").config.embedding}
    )


def test_sliding_window_is_exported_as_mistral(tmp_path, equal_tensors):
    narrow = LLAMA | {"attention": {"pattern": "sliding(3)", "bias": False, "kv_heads": 1}}
    ours = save_ours(language_model(narrow, position={"kind": "rotary"}, embedding=PLAIN, width=12), tmp_path / "ours")
    export_huggingface(tmp_path / "ours", tmp_path / "theirs")
    theirs = load_hf(tmp_path / "theirs")
    assert (type(theirs).__name__, theirs.config.sliding_window) == ("MistralForCausalLM", 3)
    equal_tensors(ours.logits(ids(2, 11, 31)), hf_logits(theirs))


INVALID_ENCODERS = {
    "pre-norm": (encoder() | {"encoder": stack(norm=SMALL_EPS)}, r"encoder\.norm_position is 'pre'.*BERT"),
    "sinusoidal positions": (
        encoder(position={"kind": "sinusoidal"}),
        r"position\.kind is 'sinusoidal'.*BERT.*'learned'",
    ),
    "scaled embeddings": (encoder(embedding={"norm": SMALL_EPS}), r"embedding\.scale is True.*BERT"),
    "no norm": (encoder(embedding={"scale": False}), r"embedding\.norm"),
    "different eps": (encoder(embedding={"scale": False, "norm": {}}), r"embedding\.norm\.eps is 1e-05"),
    "mean pooling": (
        encoder(head={"kind": "classification", "labels": ["a", "b"], "pooling": "mean"}),
        r"pooler|head\.pooling is 'mean'.*BERT",
    ),
    "sliding window": (encoder(encoder={"attention": {"pattern": "sliding(2)"}}), r"encoder\.attention\.pattern"),
    "another head activation": (encoder(head={"kind": "masked_lm", "norm": SMALL_EPS}), r"head\.activation is 'gelu'"),
    "no class token": (vision_transformer(pooling="mean"), r"pooling is 'mean'.*ViT.*'cls'"),
    "registers": (vision_transformer(registers=2), r"registers is 2.*ViT"),
    "sinusoidal grid": (vision_transformer(position={"kind": "sinusoidal"}), r"position\.kind is 'sinusoidal'.*ViT"),
    "representation and classes": (vision_transformer(representation_size=5), r"representation_size is 5.*ViT"),
    "gated": (
        vision_transformer(encoder=stack(feed_forward={"activation": "swiglu"})),
        r"encoder\.feed_forward\.activation",
    ),
    "sliding window and biases": (
        language_model(LLAMA | {"attention": {"pattern": "sliding(3)"}}, position={"kind": "rotary"}, embedding=PLAIN),
        r"decoder\.attention\.bias is True.*Mistral",
    ),
    "dilated window": (
        language_model(
            LLAMA | {"attention": {"pattern": "dilated(3, 2)", "bias": False}},
            position={"kind": "rotary"},
            embedding=PLAIN,
        ),
        r"decoder\.attention\.pattern is 'dilated\(3, 2\)'.*Mistral",
    ),
}


@pytest.mark.parametrize(("plain", "message"), INVALID_ENCODERS.values(), ids=INVALID_ENCODERS.keys())
def test_encoder_setting_without_a_counterpart_is_refused_and_nothing_is_written(plain, message, tmp_path):
    save_encoder(plain, tmp_path / "ours")
    with pytest.raises(UserError, match=message) as caught:
        export_huggingface(tmp_path / "ours", tmp_path / "theirs")
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["ours"]


def test_ctranslate2_export_refuses_a_vision_transformer(tmp_path):
    save_encoder(vision_transformer(), tmp_path / "ours")
    with pytest.raises(UserError, match="neither a translator nor a language model"):
        export_ctranslate2(tmp_path / "ours", tmp_path / "theirs")
    assert not (tmp_path / "theirs").exists()
