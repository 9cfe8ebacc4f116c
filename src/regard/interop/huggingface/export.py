"""A run folder becomes a Hugging Face folder, which transformers opens without code of ours.

The rules that bring a family's weights in are read the other way round. Whether a model fits a family is not decided by
a list of conditions: the settings for it are written, read back as an import would read them, and whatever then differs
has no counterpart there and is named. So what is exported is a model that an import gives back.

A translator of our own is pre-norm with sinusoidal positions. That is Pegasus (`PegasusForConditionalGeneration`),
except that its sinusoids stand in halves, all sines before all cosines, where ours alternate. The features of a model
have no order of their own, so they are put into that order in every tensor they occur in, and nothing else changes.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, processors
from torch import Tensor

from regard.attention import LatentConfig, LearnedConfig, SinusoidalConfig
from regard.config import ConfigError
from regard.data.tokenizer import SPECIAL_NAMES
from regard.errors import UserError
from regard.files import new_folder
from regard.interop.huggingface.bart import BART
from regard.interop.huggingface.bert import (
    BERT,
    BERT_CLASSIFY,
    BERT_FILL,
    BERT_TAG,
    WORD_BIAS,
    WORD_BIAS_AGAIN,
)
from regard.interop.huggingface.deepseek import DEEPSEEK_V2, DEEPSEEK_V3
from regard.interop.huggingface.encoder_decoder import DECODER, ENCODER, OUTPUT, SHARED, layer_rules, read_model
from regard.interop.huggingface.export_settings import (
    POSITIONS,
    WRITERS,
    generation_settings,
    kept_settings,
    no_counterpart,
)
from regard.interop.huggingface.family import Family, begun_as_there, complete
from regard.interop.huggingface.folder import FAMILIES, describe
from regard.interop.huggingface.gpt2 import GPT2
from regard.interop.huggingface.llama import LLAMA
from regard.interop.huggingface.mapping import Rule, for_layers, part, parts, stacks_of
from regard.interop.huggingface.marian import MARIAN
from regard.interop.huggingface.mistral import MISTRAL
from regard.interop.huggingface.pictures import Preparation, each_channel, write_preparation
from regard.interop.huggingface.sentence import write_sentence
from regard.interop.huggingface.settings import Settings
from regard.interop.huggingface.vit import VIT, VIT_CLASSIFY, biases
from regard.interop.huggingface.weights import HEADS, Weights
from regard.model import (
    AnyModelConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    ExpertsConfig,
    FeedForwardConfig,
    LanguageModelConfig,
    VisionTransformerConfig,
    build_empty,
    read_any_config,
)
from regard.run import Loaded, find, load, read_facts
from regard.run.tensors import write_tensors

_HALVES = SinusoidalConfig(layout="halves")
_TRAINING = ("dropout", "balance", "rate")
"""Settings that make no difference to what a trained model computes."""


def export_huggingface(folder: Path | str, out: Path | str) -> str:
    """Write a model for transformers; gives a sentence that says as what.

    A model that no architecture of theirs fits exactly is refused with the setting that has no counterpart.
    """
    place, out = find(folder), Path(out)
    if out.exists() or out.is_symlink():
        raise UserError(f"{out} exists already; choose another folder, or remove it first.")
    noted = read_facts(place).get("origin")
    origin = noted if isinstance(noted, dict) else {}
    loaded = load(place)
    family = _family(loaded.config, origin)
    _check_kinds(family, loaded.config)
    config, tensors = _prepare(family, loaded)
    imported = _imported(origin, family)
    settings = kept_settings(family, origin, config) if imported else WRITERS[family.kind](config)
    settings |= {"architectures": [family.architecture], "model_type": family.kind}
    company = dict(origin) if imported else _company(config, settings, origin)
    theirs = _send(family, config, settings, tensors)
    _leave_out_biases(config, settings, theirs)
    whole = complete(settings, company)
    _check(family, config, whole, theirs, place, loaded.tokenizer if imported else None)
    assert not set(tensors) - {name for rule in family.rules(config) for name in rule.ours}, "a tensor was left behind"
    with new_folder(out) as beside:
        _write_json(beside / "config.json", settings)
        for key, name in (("generation", "generation_config.json"), ("preprocessor", "preprocessor_config.json")):
            if company.get(key):
                _write_json(beside / name, company[key])
        if company.get("sentence"):
            write_sentence(beside, company["sentence"])
        write_tensors(beside / "model.safetensors", _spelled(family, config, theirs))
        _write_tokenizers(beside, loaded, whole, imported)
    return f"exported as {family.architecture} {describe(loaded.model, loaded.tokenizer is not None)}."


def _company(config: AnyModelConfig, settings: Mapping[str, Any], origin: Mapping[str, Any]) -> dict[str, Any]:
    """What stands beside config.json, for a model of our own."""
    if isinstance(config, VisionTransformerConfig):
        return {"preprocessor": write_preparation(Preparation(config.size, pixels=config.pixels), config.channels)}
    return {} if isinstance(config, EncoderConfig) else {"generation": generation_settings(settings, origin)}


# Which family


def _read_pegasus(settings: Settings, weights: Weights) -> EncoderDecoderConfig:
    size = settings.whole("vocab_size")
    read = read_model(settings, weights, _HALVES, None, shared=True, sizes=(size, size), usual={})
    plain = read.plain()
    for stack in ("encoder", "decoder"):
        plain[stack]["order"] = "pre"
    return EncoderDecoderConfig.read(plain)


def _pegasus_rules(config: AnyModelConfig) -> list[Rule]:
    last = parts(part("encoder.layer_norm", "encoder.norm"), part("decoder.layer_norm", "decoder.norm"))
    return for_layers(layer_rules(config) + last, config)


PEGASUS = Family(
    name="Pegasus",
    kind="pegasus",
    architecture="PegasusForConditionalGeneration",
    bare="PegasusModel",
    prefix="model.",
    read=_read_pegasus,
    rules=_pegasus_rules,
)


def _family(config: AnyModelConfig, origin: Mapping[str, Any]) -> Family:
    """The family a model came from, or the one that is most like it."""
    for family in (*FAMILIES, PEGASUS):
        if _imported(origin, family):
            return family
    match config:
        case VisionTransformerConfig():
            return VIT_CLASSIFY if config.classes else VIT
        case EncoderConfig():
            return {"fill": BERT_FILL, "classify": BERT_CLASSIFY, "tag": BERT_TAG}.get(config.head.kind, BERT)
        case LanguageModelConfig():
            if isinstance(config.decoder.attention, LatentConfig):
                return DEEPSEEK_V2 if _is_like_v2(config.decoder.feed_forward) else DEEPSEEK_V3
            if config.decoder.norm.kind != "rms":
                return GPT2
            return LLAMA if config.decoder.attention.pattern == "full" else MISTRAL
    if config.decoder.order != "post":
        return PEGASUS
    return BART if isinstance(config.position, LearnedConfig) else MARIAN


def _is_like_v2(config: FeedForwardConfig) -> bool:
    """Of DeepSeek's two, V2 chooses experts by a softmax; and where there are none, it may have biases."""
    return config.gate == "softmax" if isinstance(config, ExpertsConfig) else config.bias


def _imported(origin: Mapping[str, Any], family: Family) -> bool:
    theirs = origin.get("library") == "huggingface" and isinstance(origin.get("config"), dict)
    return theirs and origin.get("architecture") == family.architecture


def _check_kinds(family: Family, config: AnyModelConfig) -> None:
    """Refuse layers of a kind that a family does not have: of ours only DeepSeek has latents and experts."""
    deep = family in (DEEPSEEK_V2, DEEPSEEK_V3)
    for name, stack in stacks_of(config).items():
        for place, kind, usual in (
            ("attention.kind", stack.attention.kind, "latent" if deep else "heads"),
            ("feed_forward.kind", stack.feed_forward.kind, stack.feed_forward.kind if deep else "dense"),
            ("first.layers", 0 if stack.first is None or deep else stack.first.layers, 0),
        ):
            if kind != usual:
                raise no_counterpart(f"{name}.{place}", kind, family.name, f"; there it is always {usual!r}")


def _check(
    family: Family,
    config: AnyModelConfig,
    settings: dict[str, Any],
    theirs: dict[str, Tensor],
    place: Path,
    tokenizer: Tokenizer | None,
) -> None:
    """Read what was written as an import would, and refuse the model if another one would come back."""
    weights = Weights([], family.prefix)
    for name, tensor in theirs.items():
        weights.put(name, tensor)
    try:
        back = begun_as_there(family.read(Settings(settings, "config.json"), weights), tokenizer)
    except ConfigError as error:
        raise UserError(f"{place} cannot be exported as {family.name}: {error}") from None
    ours, others = _flat(_sized(config)), _flat(_sized(back))
    unlike = [key for key in {**ours, **others} if ours.get(key) != others.get(key)]
    if unlike:
        key = min(unlike, key=lambda one: not one.endswith("kind"))
        raise no_counterpart(key, ours.get(key), family.name, f"; there it is always {others.get(key)!r}")


def _sized(config: AnyModelConfig) -> dict[str, Any]:
    """The settings that make up what a model computes, with widths that were left out filled in."""
    plain = config.plain()
    for name, stack in stacks_of(config).items():
        sizes = stack.attention.sizes(config.width)
        widths = {"key_heads": sizes.key_heads, "head_width": sizes.head_width, "value_width": sizes.value_width}
        plain[name]["attention"] |= widths
        plain[name]["norm"]["bias"] |= stack.norm.kind == "rms"  # which has none either way
        if plain[name]["feed_forward"].get("groups") == 1:  # then it is all the same how groups are compared
            plain[name]["feed_forward"] |= {"group_score": "best", "active_groups": 1}
    if isinstance(config, VisionTransformerConfig):
        plain["pixels"] = {key: each_channel(value, config.channels) for key, value in plain["pixels"].items()}
    return plain


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted keys and their values; what only training knows is left out."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        elif key not in _TRAINING:
            flat[f"{prefix}{key}"] = value
    return flat


# Weights


def _prepare(family: Family, loaded: Loaded) -> tuple[AnyModelConfig, dict[str, Tensor]]:
    """The same model as one with every bias and some segment (the new ones are zero), and with sinusoids in halves.

    Experts that are kept busy by a loss get a bias for choosing, which is zero too.
    """
    config, tensors = loaded.config, dict(loaded.model.state_dict())
    plain = config.plain()
    if family not in (LLAMA, MISTRAL, DEEPSEEK_V2, DEEPSEEK_V3):  # whose settings say which biases there are
        _set_biases(plain)
    if family is DEEPSEEK_V3 and isinstance(config, LanguageModelConfig):
        _set_correction(plain["decoder"]["feed_forward"])
    if family.kind == "bert":
        plain["segments"] = max(1, plain["segments"])
    if isinstance(config.position, SinusoidalConfig) and config.position.layout == "interleaved":
        order = torch.cat((torch.arange(0, config.width, 2), torch.arange(1, config.width, 2)))
        if config.position.join == "add":
            tensors = {name: _reorder(name, tensor, order) for name, tensor in tensors.items()}
            plain["position"]["layout"] = "halves"
    full = read_any_config(plain)
    kind = next(loaded.model.parameters()).dtype
    for name, tensor in build_empty(full).state_dict().items():
        if name not in tensors:
            tensors[name] = torch.zeros(tensor.shape, dtype=kind)
    return full, tensors


def _set_biases(table: dict[str, Any]) -> None:
    for key, value in table.items():
        if isinstance(value, dict):
            _set_biases(value)
        elif key == "bias":
            table[key] = True


def _set_correction(table: dict[str, Any]) -> None:
    if table["kind"] == "experts":
        table["balancing"] = "bias"


def _reorder(name: str, tensor: Tensor, order: Tensor) -> Tensor:
    """A tensor with the features of the model's width in another order, on whichever side it has them."""
    writes = name.endswith((".function.output.weight", ".function.output.bias", ".narrow.weight", ".narrow.bias"))
    if writes or ".norm." in name:
        return tensor[order]
    reads = name.endswith((".query.weight", ".key.weight", ".value.weight", ".widen.weight", ".gate.weight"))
    if reads or name in ("vocabulary.weight", "source_vocabulary.weight", "output.weight"):
        return tensor[:, order]
    return tensor  # queries, keys, values, hidden features and scores keep theirs


def _send(
    family: Family, config: AnyModelConfig, settings: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Their tensors, made from ours."""
    theirs: dict[str, Tensor] = {}
    for rule in family.rules(config):
        if all(name in tensors for name in rule.ours):
            theirs |= rule.send([tensors[name] for name in rule.ours])
    shares = settings.get("share_encoder_decoder_embeddings") is not False
    if isinstance(config, EncoderDecoderConfig) and shares and not (config.tie and config.source_vocabulary is None):
        # Where not all words are one table, their library ties none: each is stored under its own name.
        words, source = tensors["vocabulary.weight"], tensors.get("source_vocabulary.weight")
        words_of = {SHARED: words, DECODER: words, ENCODER: words if source is None else source}
        theirs |= {name: tensor.clone() for name, tensor in words_of.items()}
        theirs |= {OUTPUT: words.clone()} if config.tie else {}
    if WORD_BIAS in theirs and settings.get("tie_word_embeddings") is False:
        theirs[WORD_BIAS_AGAIN] = theirs[WORD_BIAS].clone()
    return theirs


def _leave_out_biases(config: AnyModelConfig, settings: dict[str, Any], theirs: dict[str, Tensor]) -> None:
    """Of a ViT that came without biases on queries, keys and values, unless they are no longer zero."""
    if settings.get("qkv_bias") is False:
        names = biases(stacks_of(config)["encoder"].layers)
        settings["qkv_bias"] = any(bool(theirs[name].any()) for name in names)
        for name in () if settings["qkv_bias"] else names:
            del theirs[name]


def _spelled(family: Family, config: AnyModelConfig, theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors under the names of a whole model, with what a file has and a model of ours does not."""
    whole = dict(theirs)
    if family is PEGASUS:
        table = _HALVES.code(config.width).encode(torch.arange(POSITIONS))
        whole |= {f"{stack}.embed_positions.weight": table.clone() for stack in ("encoder", "decoder")}
    if isinstance(config, EncoderDecoderConfig) and "final_logits_bias" not in whole:
        whole["final_logits_bias"] = torch.zeros(1, config.vocabulary, dtype=next(iter(theirs.values())).dtype)
    alone = family.architecture == family.bare  # without a head, so that nothing has to be told from it
    return {name if alone or name.startswith(HEADS) else family.prefix + name: one for name, one in whole.items()}


# Tokenizer


def _write_tokenizers(beside: Path, loaded: Loaded, settings: Mapping[str, Any], imported: bool) -> None:
    """The tokenizer with the names of its special tokens; the target's, where it is another, in a folder of its own."""
    if loaded.tokenizer is None:
        return
    _write_tokenizer(beside, loaded.tokenizer, settings, imported)
    if loaded.target_tokenizer is not None and loaded.target_tokenizer is not loaded.tokenizer:
        target = beside / "target_tokenizer"
        target.mkdir()
        _write_tokenizer(target, loaded.target_tokenizer, settings, imported)


def _write_tokenizer(folder: Path, given: Tokenizer, settings: Mapping[str, Any], imported: bool) -> None:
    tokenizer = Tokenizer.from_str(given.to_str())
    facts: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"],
    }
    if not imported:
        facts["split_special_tokens"] = True  # what a person types is plain text
        if settings.get("is_encoder_decoder"):
            facts["model_max_length"] = settings["max_position_embeddings"]
    if settings["model_type"] == "bert":
        facts["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    for role in ("pad_token", "bos_token", "eos_token", "mask_token", "sep_token", "cls_token"):
        number = settings.get(f"{role}_id")
        number = number[0] if isinstance(number, list) and number else number
        name = tokenizer.id_to_token(number) if type(number) is int and number >= 0 else None
        if name is not None:
            facts[role] = name
    word_pieces = isinstance(tokenizer.model, models.WordPiece)
    unknown = tokenizer.model.unk_token if word_pieces else SPECIAL_NAMES["unknown"]
    if tokenizer.token_to_id(unknown) is not None:
        facts["unk_token"] = unknown
    # Our translators put the end behind a source themselves, and our writers the start before a prompt, where they have
    # one; theirs leave it to the tokenizer.
    translates = settings.get("is_encoder_decoder")
    writes = not imported and settings["model_type"] != "bert"
    added = facts.get("eos_token" if translates else "bos_token")
    if added is not None and tokenizer.post_processor is None and (translates or writes):
        tokenizer.post_processor = processors.TemplateProcessing(
            single=["$A", added] if translates else [added, "$A"],
            pair=["$A", "$B", added] if translates else [added, "$A", "$B"],
            special_tokens=[(added, tokenizer.token_to_id(added))],
        )
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(folder / "tokenizer_config.json", facts)


def _write_json(path: Path, table: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(table, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
