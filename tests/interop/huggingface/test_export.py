"""Exported models give in transformers what they give here, and a model that cannot says why."""

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
from regard.data.tokenizer import SPECIAL_NAMES
from regard.errors import UserError
from regard.interop import export_ctranslate2, import_huggingface
from regard.interop.huggingface.export import export_huggingface
from regard.model import EncoderConfig, LanguageModelConfig, VisionTransformerConfig, read_any_config, read_config
from regard.run import find, save
from regard.task import load_generator
from regard.task.translator import load_translator

from . import test_bart, test_bert, test_gpt2, test_llama, test_marian, test_mistral, test_rope, test_vit
from .support import edit_json, ids

BOUND = 1e-5
"""How far logits may be apart after a way there and back."""
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


HEADED = {
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


def open_theirs(directory):
    """Their model, into which every tensor must have found its way, and no other."""
    settings = json.loads((directory / "config.json").read_text())
    kind = settings["model_type"]
    opener = AutoModelForCausalLM if kind in ("gpt2", "llama", "mistral") else AutoModelForSeq2SeqLM
    opener = HEADED.get(settings["architectures"][0], opener)
    model, info = opener.from_pretrained(directory, use_safetensors=True, output_loading_info=True)
    computed = (
        {f"model.{side}.embed_positions.weight" for side in ("encoder", "decoder")} if kind == "marian" else set()
    )
    assert set(info["missing_keys"]) <= computed
    assert not info["unexpected_keys"]
    assert not info["mismatched_keys"]
    return model.eval()


@torch.no_grad()
def scores(model, length=11):
    """Logits of their model on ids that are always the same."""
    config = model.config
    if isinstance(model, ViTModel | ViTForImageClassification):
        size = config.image_size if isinstance(config.image_size, list | tuple) else [config.image_size] * 2
        return test_vit.given(model, test_vit.pixels(model, *size))
    if config.model_type == "bert":
        segments = ids(2, length, config.type_vocab_size, seed=2)
        return test_bert.given(model, ids(2, length, config.vocab_size), token_type_ids=segments)
    if not config.is_encoder_decoder:
        return model(ids(2, length, config.vocab_size)).logits
    seen = (torch.arange(7) < torch.tensor([[7], [4]])).long()
    words = getattr(config, "decoder_vocab_size", None) or config.vocab_size
    return model(ids(2, 7, config.vocab_size), attention_mask=seen, decoder_input_ids=ids(2, 8, words, seed=2)).logits


def there_and_back(directory, tmp_path):
    import_huggingface(directory, tmp_path / "ours")
    export_huggingface(tmp_path / "ours", tmp_path / "back")
    return tmp_path / "back"


ROUND = {
    f"{family.__name__.rpartition('_')[2]}: {name}": (family.build, changes)
    for family in (test_marian, test_bart, test_gpt2, test_llama, test_mistral, test_bert, test_vit)
    for name, changes in family.UNLIKE.items()
}


@pytest.mark.parametrize(("build", "changes"), ROUND.values(), ids=ROUND.keys())
def test_a_model_that_was_imported_is_the_same_after_the_way_back(build, changes, save_theirs, tmp_path, same):
    theirs = build(changes)
    back = open_theirs(there_and_back(save_theirs(theirs), tmp_path))
    assert type(back) is type(theirs)
    same(scores(back), scores(theirs), bound=BOUND)


NEWER = ("mistral", "bert", "vit")
EXACT = {name: case for name, case in ROUND.items() if name.startswith(NEWER)} | {
    "marian": (test_marian.build, {}),
    "bart": (test_bart.build, {}),
    "gpt2": (test_gpt2.build, {}),
    "llama": (test_llama.build, {}),
}


@pytest.mark.parametrize(("build", "changes"), EXACT.values(), ids=EXACT.keys())
def test_the_way_back_gives_every_tensor_as_it_was(build, changes, save_theirs, tmp_path):
    directory = save_theirs(build(changes))
    back = load_file(there_and_back(directory, tmp_path) / "model.safetensors")
    before = load_file(directory / "model.safetensors")
    tables = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")
    assert back.keys() == before.keys()
    if "cls.predictions.decoder.bias" in before:  # then the other is not read
        before["cls.predictions.bias"] = before["cls.predictions.decoder.bias"]
    for name, tensor in before.items():
        first = 2 if name in tables else 0  # rows of BART's tables that are never read
        assert torch.equal(back[name][first:], tensor[first:])


def test_half_precision_stays_half_precision(save_theirs, tmp_path):
    back = there_and_back(save_theirs(test_bart.build({}).to(torch.bfloat16)), tmp_path)
    assert {tensor.dtype for tensor in load_file(back / "model.safetensors").values()} == {torch.bfloat16}
    assert open_theirs(back).dtype == torch.bfloat16


@pytest.mark.parametrize(
    "build",
    [test_marian.build, test_bart.build, test_gpt2.build, test_llama.build],
    ids=["marian", "bart", "gpt2", "llama"],
)
def test_a_tokenizer_that_was_imported_gives_the_same_ids_after_the_way_back(build, save_theirs, tmp_path):
    directory = save_theirs(build({"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}))
    tokenizer = Tokenizer.from_file(str(find("en-tr") / "tokenizer.json"))
    end = SPECIAL_NAMES["end"]
    tokenizer.post_processor = processors.TemplateProcessing(single=f"$A {end}", special_tokens=[(end, 2)])
    tokenizer.save(str(directory / "tokenizer.json"))
    back = AutoTokenizer.from_pretrained(there_and_back(directory, tmp_path))
    for text in SENTENCES:
        assert back(text)["input_ids"] == tokenizer.encode(text).ids
    assert (back.pad_token_id, back.bos_token_id, back.eos_token_id) == (0, 1, 2)


@pytest.mark.parametrize("kind", test_rope.KINDS)
def test_rotary_scaling_is_the_same_after_the_way_back(kind, save_theirs, tmp_path, same):
    theirs = test_rope.build(kind)
    back = open_theirs(there_and_back(save_theirs(theirs), tmp_path))
    same(scores(back, length=24), scores(theirs, length=24), bound=BOUND)


@pytest.mark.parametrize("kind", test_rope.KINDS)
def test_rotary_scaling_is_written_from_our_own_settings_too(kind, save_theirs, tmp_path, same):
    theirs = test_rope.build(kind)
    import_huggingface(save_theirs(theirs), tmp_path / "ours")
    edit_json(tmp_path / "ours" / "run.json", origin={})
    export_huggingface(tmp_path / "ours", tmp_path / "back")
    same(scores(open_theirs(tmp_path / "back"), length=24), scores(theirs, length=24), bound=BOUND)


def test_what_was_said_about_generation_is_kept(save_theirs, tmp_path):
    directory = save_theirs(test_llama.build({}), eos_token_id=None)
    edit_json(directory / "generation_config.json", eos_token_id=[5, 9], top_p=0.7)
    back = there_and_back(directory, tmp_path)
    kept = json.loads((back / "generation_config.json").read_text())
    assert kept == json.loads((directory / "generation_config.json").read_text())


def stack(**changes):
    attention = {"heads": 3} | changes.pop("attention", {})
    feed_forward = {"hidden": 20} | changes.pop("feed_forward", {})
    return {"layers": 2, "attention": attention, "feed_forward": feed_forward, **changes}


def translator(encoder=None, decoder=None, **changes):
    tokens = {"padding": 0, "start": 1, "end": 2}
    sides = {"encoder": stack(**(encoder or {})), "decoder": stack(**(decoder or {}))}
    return {"kind": "encoder-decoder", "vocabulary": 31, "width": 12, "tokens": tokens, **sides, **changes}


def writer(decoder=None, **changes):
    return {"kind": "language-model", "vocabulary": 31, "width": 12, "decoder": stack(**(decoder or {})), **changes}


POST = {"order": "post"}
NO_BIAS = {"attention": {"bias": False}, "feed_forward": {"bias": False}, "norm": {"bias": False}}
LEARNED = {"kind": "learned", "limit": 40}
LLAMA = {"norm": {"kind": "rms"}, "feed_forward": {"activation": "swiglu", "bias": False}}
PLAIN = {"scale": False}
OURS = {
    "our own translator": ("Pegasus", translator()),
    "sinusoids in halves": ("Pegasus", translator(position={"kind": "sinusoidal", "layout": "halves"})),
    "odd width": ("Pegasus", translator(width=15)),
    "unlike stacks, no scale": ("Pegasus", translator({"layers": 1}, {"attention": {"heads": 2}}, embedding=PLAIN)),
    "untied, bias on words": ("Pegasus", translator(tie=False, output_bias=True)),
    "no biases": ("Pegasus", translator(NO_BIAS, NO_BIAS)),
    "gelu": ("Pegasus", translator(*[{"feed_forward": {"activation": "gelu-tanh"}}] * 2)),
    "post-norm": ("Marian", translator(POST, POST)),
    "post-norm, two vocabularies": ("Marian", translator(POST, POST, source_vocabulary=23)),
    "post-norm, three tables": ("Marian", translator(POST, POST, source_vocabulary=23, tie=False)),
    "learned, norm": ("Bart", translator(POST, POST, position=LEARNED, embedding={"norm": {}})),
    "language model, learned": ("GPT2", writer(position=LEARNED, embedding=PLAIN, tie=False)),
    "language model, no biases": ("GPT2", writer(NO_BIAS, position=LEARNED, embedding=PLAIN)),
    "language model, rotary": ("Llama", writer(LLAMA, position={"kind": "rotary", "base": 500.0}, embedding=PLAIN)),
}


def save_ours(plain, folder, **tokenizers):
    """A model of ours in which no tensor is zero or like another."""
    torch.manual_seed(0)
    model = read_config(plain).build()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.25 + (".norm.weight" in name))
    save(model, folder, **tokenizers)
    return regard.load(folder)


@pytest.mark.parametrize(("name", "plain"), OURS.values(), ids=OURS.keys())
def test_a_model_of_our_own_gives_the_same_logits(name, plain, tmp_path, same):
    ours = save_ours(plain, tmp_path / "ours")
    export_huggingface(tmp_path / "ours", tmp_path / "theirs")
    theirs = open_theirs(tmp_path / "theirs")
    assert type(theirs).__name__.startswith(name)
    if isinstance(ours.config, LanguageModelConfig):
        same(ours.logits(ids(2, 11, 31)), scores(theirs))
    else:
        rows = ids(2, 7, ours.config.source_vocabulary or 31), ids(2, 8, 31, seed=2)
        same(ours.logits(*rows, lengths=[7, 4]), scores(theirs))


GATED = {"feed_forward": {"activation": "swiglu"}}
WRONG = {
    "gated": (translator(GATED, GATED), r"decoder\.feed_forward\.activation is 'swiglu'.* Pegasus"),
    "unlike bends": (
        translator({"feed_forward": {"activation": "gelu"}}),
        r"encoder\.feed_forward\.activation is 'gelu'",
    ),
    "few key heads": (translator({}, {"attention": {"key_heads": 1}}), r"decoder\.attention\.key_heads is 1"),
    "wide heads": (translator({"attention": {"head_width": 5}}), r"encoder\.attention\.head_width is 5"),
    "a window": (
        translator({"attention": {"pattern": "sliding(4)"}}),
        r"encoder\.attention\.pattern is 'sliding\(4\)'",
    ),
    "rms": (translator({"norm": {"kind": "rms"}}), r"encoder\.norm\.kind is 'rms'"),
    "fine norm": (translator({"norm": {"epsilon": 1e-6}}), r"encoder\.norm\.epsilon is 1e-06"),
    "rotary": (translator(position={"kind": "rotary"}), r"position\.kind is 'rotary'"),
    "another base": (translator(position={"kind": "sinusoidal", "base": 500.0}), r"position\.base is 500"),
    "beside the words": (
        translator(position={"kind": "sinusoidal", "join": "concatenate", "features": 4}, tie=False),
        r"position\.join is 'concatenate'",
    ),
    "one memory": (translator(memory="shared"), r"memory is 'shared'"),
    "two vocabularies": (translator(source_vocabulary=23), r"source_vocabulary is 23.*one vocabulary"),
    "mixed orders": (translator(POST), r"encoder\.order is 'post'"),
    "no residual": (translator({}, {"order": "none"}), r"decoder\.order is 'none'"),
    "normed words": (translator(embedding={"norm": {}}), r"embedding\.norm"),
    "no output projection": (translator({"attention": {"output": False}}), r"encoder\.attention\.output is False"),
    "cosines": (translator({}, {"attention": {"similarity": "cosine"}}), r"decoder\.attention\.similarity is 'cosine'"),
    "scaled words": (writer(position=LEARNED), r"embedding\.scale is True.*GPT-2"),
    "sinusoids": (writer(embedding=PLAIN), r"position\.kind is 'sinusoidal'.*GPT-2.*'learned'"),
    "ungated rms": (writer({"norm": {"kind": "rms"}}), r"activation is 'relu'.*Llama"),
}


@pytest.mark.parametrize(("plain", "sentence"), WRONG.values(), ids=WRONG.keys())
def test_a_setting_without_a_counterpart_is_named_and_nothing_is_written(plain, sentence, tmp_path):
    save_ours(plain, tmp_path / "ours")
    with pytest.raises(UserError, match=sentence) as caught:
        export_huggingface(tmp_path / "ours", tmp_path / "theirs")
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["ours"]


def test_a_folder_that_exists_is_left_alone(tmp_path):
    with pytest.raises(UserError, match="exists already"):
        export_huggingface("en-tr", tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def shipped(tmp_path_factory):
    """The model that ships, exported: our own, their model, their tokenizer."""
    out = tmp_path_factory.mktemp("export") / "en-tr"
    said = export_huggingface("en-tr", out)
    assert said == (
        "exported as PegasusForConditionalGeneration with 7,584,000 parameters in float16, with its tokenizer."
    )
    return load_translator("en-tr"), open_theirs(out), AutoTokenizer.from_pretrained(out)


def test_the_shipped_model_computes_in_float32_and_gives_the_same_logits(shipped, same):
    ours, theirs, tokenizer = shipped
    assert theirs.dtype == torch.float32
    batch = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    target = ids(len(SENTENCES), 15, 8000)
    with torch.no_grad():
        expected = theirs(**batch, decoder_input_ids=target).logits
    same(ours.logits(batch["input_ids"], target, lengths=batch["attention_mask"].sum(1)), expected)


def test_the_shipped_tokenizer_gives_the_same_ids_and_takes_names_of_special_tokens_for_text(shipped):
    ours, _, tokenizer = shipped
    for text in (*SENTENCES, "Çok güzel! 😀  iki  boşluk", f"{SPECIAL_NAMES['end']} is text"):
        assert tokenizer(text)["input_ids"] == [*ours.source_text.encode(text), 2]
    assert (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1, 2)


@pytest.mark.parametrize("beams", [1, 5])
def test_the_shipped_model_translates_as_here(beams, shipped):
    ours, theirs, tokenizer = shipped
    batch = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    found = tokenizer.decode(theirs.generate(**batch, num_beams=beams), skip_special_tokens=True)
    expected = ours.translate_sentences(SENTENCES, ours.search(beams))
    assert found == [translations[0].text for translations in expected]


def test_the_search_a_model_was_made_for_is_told_as_far_as_it_can_be(shipped):
    settings = shipped[1].generation_config
    assert (settings.num_beams, settings.length_penalty, settings.decoder_start_token_id) == (5, 0.4, 1)
    assert settings.forced_eos_token_id is None


@pytest.mark.parametrize(("penalty", "expected"), [("power", 0.6), ("none", 0.0)])
def test_a_penalty_of_their_own_form_is_the_same(penalty, expected, tmp_path):
    shutil.copytree(find("en-tr"), tmp_path / "ours")
    facts = json.loads((tmp_path / "ours" / "run.json").read_text())
    edit_json(tmp_path / "ours" / "run.json", origin={"decode": facts["origin"]["decode"] | {"penalty": penalty}})
    export_huggingface(tmp_path / "ours", tmp_path / "theirs")
    assert json.loads((tmp_path / "theirs" / "generation_config.json").read_text())["length_penalty"] == expected


def words(*names):
    tokenizer = Tokenizer(models.WordLevel({name: number for number, name in enumerate(names)}, unk_token=names[3]))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(list(names[:4]))
    return tokenizer


def test_a_tokenizer_of_its_own_for_the_target_gets_a_folder_of_its_own(tmp_path):
    model = read_config(translator(POST, POST, source_vocabulary=23)).build()
    names = [SPECIAL_NAMES[role] for role in ("padding", "start", "end", "unknown")]
    sides = [words(*names, word) for word in ("cat", "kedi")]
    save(model, tmp_path / "ours", tokenizer=sides[0], target_tokenizer=sides[1])
    export_huggingface(tmp_path / "ours", tmp_path / "theirs")
    source, target = (AutoTokenizer.from_pretrained(tmp_path / "theirs" / part) for part in ("", "target_tokenizer"))
    assert source("cat kedi")["input_ids"] == [4, 3, 2]
    assert target("cat kedi")["input_ids"] == [3, 4, 2]
    assert (source.unk_token_id, target.eos_token_id) == (3, 2)


@pytest.mark.parametrize("start", [1, None])
def test_a_writer_begins_a_prompt_there_as_it_does_here(start, tmp_path):
    """With a start before it where the model has one; and so it does when it comes back."""
    tokens = {"padding": 0, "start": start, "end": 2}
    names = [SPECIAL_NAMES[role] for role in ("padding", "start", "end", "unknown")]
    model = read_config(writer(position=LEARNED, embedding=PLAIN, tokens=tokens)).build()
    save(model, tmp_path / "ours", tokenizer=words(*names, "cat"))
    export_huggingface(tmp_path / "ours", tmp_path / "theirs")
    import_huggingface(tmp_path / "theirs", tmp_path / "back")
    wanted = [4, 4] if start is None else [start, 4, 4]
    assert AutoTokenizer.from_pretrained(tmp_path / "theirs")("cat cat")["input_ids"] == wanted
    for name in ("ours", "back"):
        generator = load_generator(tmp_path / name)
        assert generator.prompt(generator.text.encode("cat cat")) == wanted


# --- Models that read ---


def reader(**changes):
    stacks = {"encoder": stack(order="post", norm={"epsilon": 1e-6}, **changes.pop("encoder", {}))}
    return {
        "kind": "encoder",
        "vocabulary": 31,
        "width": 12,
        "position": LEARNED,
        "embedding": {"scale": False, "norm": {"epsilon": 1e-6}},
        **stacks,
        **changes,
    }


def viewer(**changes):
    return {"kind": "vision", "image": 8, "patch": 4, "width": 12, "classes": 3, "encoder": stack(), **changes}


FINE = {"epsilon": 1e-6}
READERS = {
    "vectors, no segments": (BertModel, reader(pooler=True)),
    "gaps": (BertForMaskedLM, reader(head={"kind": "fill", "activation": "relu", "norm": FINE}, segments=2)),
    "gaps, untied, no biases": (
        BertForMaskedLM,
        reader(
            head={"kind": "fill", "activation": "relu", "norm": FINE, "tie": False, "bias": False},
            encoder={"attention": {"bias": False}, "feed_forward": {"bias": False}},
        ),
    ),
    "labels of texts": (
        BertForSequenceClassification,
        reader(head={"kind": "classify", "labels": ["a", "b", "c"], "pooling": "pooler"}, pooler=True),
    ),
    "labels of tokens": (BertForTokenClassification, reader(head={"kind": "tag", "labels": ["a", "b"]})),
    "classes by number": (ViTForImageClassification, viewer()),
    "named classes, wide pictures, no biases": (
        ViTForImageClassification,
        viewer(classes=["a", "b"], image=[4, 12], encoder=stack(attention={"bias": False}), channels=1),
    ),
    "pictures' vectors": (ViTModel, viewer(classes=0, representation=5)),
}


def save_reader(plain, folder):
    torch.manual_seed(0)
    model = read_any_config(plain).build()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.25 + (".norm.weight" in name))
    save(model, folder)
    return regard.load(folder)


@pytest.mark.parametrize(("kind", "plain"), READERS.values(), ids=READERS.keys())
@torch.no_grad()
def test_a_model_of_our_own_that_reads_gives_the_same_outputs(kind, plain, tmp_path, same):
    ours = save_reader(plain, tmp_path / "ours")
    export_huggingface(tmp_path / "ours", tmp_path / "theirs")
    theirs = open_theirs(tmp_path / "theirs")
    assert type(theirs) is kind
    if isinstance(ours.config, VisionTransformerConfig):
        same(ours.logits(test_vit.pixels(theirs, *ours.config.size)), scores(theirs))
        processor = AutoImageProcessor.from_pretrained(tmp_path / "theirs")
        assert (processor.size["height"], processor.size["width"]) == ours.config.size
        assert list(processor.image_mean) == [0.5] * ours.config.channels
    else:
        assert isinstance(ours.config, EncoderConfig)
        segments = ids(2, 11, ours.config.segments or 1, seed=2) if ours.config.segments else None
        same(ours.model(ids(2, 11, 31), segments=segments), scores(theirs))


@pytest.mark.parametrize("labels", [["a", "b", "c"]])
def test_labels_keep_their_names_on_the_way(labels, tmp_path):
    save_reader(reader(head={"kind": "tag", "labels": labels}), tmp_path / "ours")
    export_huggingface(tmp_path / "ours", tmp_path / "theirs")
    import_huggingface(tmp_path / "theirs", tmp_path / "back")
    assert list(open_theirs(tmp_path / "theirs").config.id2label.values()) == labels
    assert regard.load(tmp_path / "back").config == regard.load(tmp_path / "ours").config.model_copy(
        update={"segments": 1, "embedding": regard.load(tmp_path / "back").config.embedding}
    )


def test_a_window_of_our_own_is_mistral_s(tmp_path, same):
    narrow = LLAMA | {"attention": {"pattern": "sliding(3)", "bias": False, "key_heads": 1}}
    ours = save_ours(writer(narrow, position={"kind": "rotary"}, embedding=PLAIN, width=12), tmp_path / "ours")
    export_huggingface(tmp_path / "ours", tmp_path / "theirs")
    theirs = open_theirs(tmp_path / "theirs")
    assert (type(theirs).__name__, theirs.config.sliding_window) == ("MistralForCausalLM", 3)
    same(ours.logits(ids(2, 11, 31)), scores(theirs))


UNREADABLE = {
    "pre-norm": (reader() | {"encoder": stack(norm=FINE)}, r"encoder\.order is 'pre'.*BERT"),
    "sinusoids": (reader(position={"kind": "sinusoidal"}), r"position\.kind is 'sinusoidal'.*BERT.*'learned'"),
    "scaled words": (reader(embedding={"norm": FINE}), r"embedding\.scale is True.*BERT"),
    "no norm": (reader(embedding={"scale": False}), r"embedding\.norm"),
    "unlike norms": (reader(embedding={"scale": False, "norm": {}}), r"embedding\.norm\.epsilon is 1e-05"),
    "a mean": (
        reader(head={"kind": "classify", "labels": ["a", "b"], "pooling": "mean"}),
        r"pooler|head\.pooling is 'mean'.*BERT",
    ),
    "a window": (reader(encoder={"attention": {"pattern": "sliding(2)"}}), r"encoder\.attention\.pattern"),
    "another bend": (reader(head={"kind": "fill", "norm": FINE}), r"head\.activation is 'gelu'"),
    "no class token": (viewer(pooling="mean"), r"pooling is 'mean'.*ViT.*'class'"),
    "registers": (viewer(registers=2), r"registers is 2.*ViT"),
    "sinusoidal grid": (viewer(position={"kind": "sinusoidal"}), r"position\.kind is 'sinusoidal'.*ViT"),
    "a representation and classes": (viewer(representation=5), r"representation is 5.*ViT"),
    "gated": (viewer(encoder=stack(feed_forward={"activation": "swiglu"})), r"encoder\.feed_forward\.activation"),
    "a window and biases": (
        writer(LLAMA | {"attention": {"pattern": "sliding(3)"}}, position={"kind": "rotary"}, embedding=PLAIN),
        r"decoder\.attention\.bias is True.*Mistral",
    ),
    "gaps in a window": (
        writer(
            LLAMA | {"attention": {"pattern": "dilated(3, 2)", "bias": False}},
            position={"kind": "rotary"},
            embedding=PLAIN,
        ),
        r"decoder\.attention\.pattern is 'dilated\(3, 2\)'.*Mistral",
    ),
}


@pytest.mark.parametrize(("plain", "sentence"), UNREADABLE.values(), ids=UNREADABLE.keys())
def test_a_setting_of_a_reader_without_a_counterpart_is_named(plain, sentence, tmp_path):
    save_reader(plain, tmp_path / "ours")
    with pytest.raises(UserError, match=sentence) as caught:
        export_huggingface(tmp_path / "ours", tmp_path / "theirs")
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["ours"]


def test_ctranslate2_is_for_models_that_write(tmp_path):
    save_reader(viewer(), tmp_path / "ours")
    with pytest.raises(UserError, match="neither translates nor continues texts"):
        export_ctranslate2(tmp_path / "ours", tmp_path / "theirs")
    assert not (tmp_path / "theirs").exists()
