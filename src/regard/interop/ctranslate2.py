"""A model becomes a folder of CTranslate2, which computes without PyTorch and is quick at it on a CPU.

CTranslate2 describes a model as a tree of specifications, to be filled with weights and saved; that part of it is used
here. Words are its tokens: the folder gets the tokenizer's tokens as its vocabulary, and tokenizer.json beside them.

    source = Tokenizer.from_file("OUT/tokenizer.json")
    tokens = source.encode("The cat ate the mouse.", add_special_tokens=False).tokens
    result = ctranslate2.Translator("OUT").translate_batch([tokens], beam_size=1)

The end behind a source is put there by CTranslate2. Positions are stored as a table, so there is a longest text (not
where they are rotary, which a language model may have).
"""

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from regard.attention import LearnedConfig, RotaryConfig, SinusoidalConfig
from regard.data.tokenizer import SPECIAL_NAMES
from regard.errors import UserError
from regard.files import new_folder
from regard.model import EncoderDecoderConfig, LanguageModelConfig, StackConfig
from regard.run import Loaded, find, load

POSITIONS = 1024
"""Rows of a table of sinusoids, where a model of ours has no limit of its own."""
QUANTIZATIONS = ("float32", "float16", "bfloat16", "int16", "int8", "int8_float32", "int8_float16", "int8_bfloat16")

_ACTIVATIONS = {
    "relu": "RELU",
    "gelu": "GELU",
    "gelu-tanh": "GELUTanh",
    "silu": "SWISH",
    "swiglu": "SWISH",
    "geglu": "GELU",
    "geglu-tanh": "GELUTanh",
}
_GATED = ("swiglu", "geglu", "geglu-tanh")


def export_ctranslate2(folder: Path | str, out: Path | str, *, quantization: str = "float32") -> str:
    """Write a translator or a language model for CTranslate2, its weights rounded as `quantization` says.

    Gives a sentence about it.

    A model that CTranslate2 cannot compute exactly is refused with the setting that has no counterpart there.
    """
    place, out = find(folder), Path(out)
    if out.exists() or out.is_symlink():
        raise UserError(f"{out} exists already; choose another folder, or remove it first.")
    if quantization not in QUANTIZATIONS:
        raise UserError(f"There is no quantization {quantization!r}; choose one of {', '.join(QUANTIZATIONS)}.")
    loaded = load(place)
    config = loaded.config
    if isinstance(config, LanguageModelConfig):
        return _export_language_model(loaded, config, place, out, quantization)
    if not isinstance(config, EncoderDecoderConfig):
        raise UserError(f"{place} neither translates nor continues texts, which is all that CTranslate2 is for here.")
    _check(config)
    sides = _vocabularies(loaded, config, place)
    specs = _specs()
    spec = _fill(specs, config, {name: tensor.float() for name, tensor in loaded.model.state_dict().items()})
    _describe(spec.config, config, sides)
    spec.register_source_vocabulary(sides[0])
    spec.register_target_vocabulary(sides[1])
    spec.validate()
    spec.optimize(quantization=quantization)
    with new_folder(out) as beside:
        spec.save(str(beside))
        for name, tokenizer in (("tokenizer.json", loaded.tokenizer), ("target_tokenizer.json", _target(loaded))):
            if tokenizer is not None:
                tokenizer.save(str(beside / name))
    return f"exported for CTranslate2 in {quantization}, with its vocabulary of {config.vocabulary:,} words."


def _export_language_model(
    loaded: Loaded, config: LanguageModelConfig, place: Path, out: Path, quantization: str
) -> str:
    if loaded.tokenizer is None:
        raise UserError(f"{place} has no tokenizer, and CTranslate2 knows words by their tokens only.")
    _check_writer(config)
    words = _words(loaded.tokenizer, config.vocabulary)
    spec = _fill_writer(_specs(), config, {name: tensor.float() for name, tensor in loaded.model.state_dict().items()})
    start, end = config.tokens.start, config.tokens.end
    assert end is not None
    spec.config.eos_token = spec.config.unk_token = words[end]  # ids are given it, so that none is unknown
    spec.config.bos_token = words[end if start is None else start]
    spec.config.layer_norm_epsilon = config.decoder.norm.epsilon
    spec.register_vocabulary(words)
    spec.validate()
    spec.optimize(quantization=quantization)
    with new_folder(out) as beside:
        spec.save(str(beside))
        loaded.tokenizer.save(str(beside / "tokenizer.json"))
    return f"exported for CTranslate2 in {quantization}, with its vocabulary of {config.vocabulary:,} words."


def _specs() -> Any:
    """Their specifications. The package has no types, and need not be there."""
    try:
        return importlib.import_module("ctranslate2.specs")
    except ImportError:
        raise UserError(
            "Exporting for CTranslate2 needs a package that is not installed; install it with pip install ctranslate2."
        ) from None


def _check(config: EncoderDecoderConfig) -> None:
    """Refuse what CTranslate2 has no counterpart for, naming the setting."""
    if not isinstance(config.position, SinusoidalConfig | LearnedConfig):
        raise _no_counterpart("position.kind", config.position.kind, "sinusoidal or learned")
    if config.position.join != "add":
        raise _no_counterpart("position.join", config.position.join, "add")
    if config.embedding.norm is not None and config.embedding.norm.kind != config.encoder.norm.kind:
        raise _no_counterpart("embedding.norm.kind", config.embedding.norm.kind, config.encoder.norm.kind)
    for name, stack in {"encoder": config.encoder, "decoder": config.decoder}.items():
        attention, sizes = stack.attention, stack.attention.sizes(config.width)
        usual = config.width // sizes.heads
        for key, found, expected in (
            ("order", stack.order, ("pre", "post")),
            ("attention.key_heads", sizes.key_heads, (sizes.heads,)),
            ("attention.head_width", sizes.head_width, (usual,)),
            ("attention.value_width", sizes.value_width, (usual,)),
            ("attention.similarity", attention.similarity, ("scaled",)),
            ("attention.pattern", attention.pattern, ("full",)),
            ("attention.output", attention.output, (True,)),
            ("first.layers", 0 if stack.first is None else stack.first.layers, (0,)),
            ("feed_forward.kind", stack.feed_forward.kind, ("dense",)),
            ("feed_forward.activation", stack.feed_forward.activation, tuple(_ACTIVATIONS)),
            ("norm.kind", stack.norm.kind, (config.encoder.norm.kind,)),
            ("norm.epsilon", stack.norm.epsilon, (config.encoder.norm.epsilon,)),
        ):
            if found not in expected:
                raise _no_counterpart(f"{name}.{key}", found, " or ".join(str(one) for one in expected))
    for role in ("start", "end"):
        if getattr(config.tokens, role) is None:
            raise UserError(f"tokens.{role} is not set, so the model cannot be decoded, here or in CTranslate2.")


def _check_writer(config: LanguageModelConfig) -> None:
    """The same for a language model, which may have rotary positions and share keys among heads."""
    position, attention, norm = config.position, config.decoder.attention, config.embedding.norm
    sizes = attention.sizes(config.width)
    if isinstance(position, RotaryConfig):
        if position.scaling is not None:
            raise _no_counterpart("position.scaling.kind", position.scaling.kind, "left out")
    elif not isinstance(position, SinusoidalConfig | LearnedConfig):
        raise _no_counterpart("position.kind", position.kind, "sinusoidal, learned or rotary")
    elif position.join != "add":
        raise _no_counterpart("position.join", position.join, "add")
    usual = config.width // sizes.heads
    for key, found, expected in (
        ("decoder.order", config.decoder.order, ("pre", "post")),
        ("decoder.attention.head_width", sizes.head_width, (usual,)),
        ("decoder.attention.value_width", sizes.value_width, (usual,)),
        ("decoder.attention.similarity", attention.similarity, ("scaled",)),
        ("decoder.attention.pattern", attention.pattern, ("full",)),
        ("decoder.attention.output", attention.output, (True,)),
        ("decoder.first.layers", 0 if config.decoder.first is None else config.decoder.first.layers, (0,)),
        ("decoder.feed_forward.kind", config.decoder.feed_forward.kind, ("dense",)),
        ("decoder.feed_forward.activation", config.decoder.feed_forward.activation, tuple(_ACTIVATIONS)),
        ("embedding.norm.kind", None if norm is None else norm.kind, (None, config.decoder.norm.kind)),
    ):
        if found not in expected:
            raise _no_counterpart(key, found, " or ".join(str(one) for one in expected))
    if config.tokens.end is None:
        raise UserError("tokens.end is not set, and CTranslate2 needs a token for the end of a text.")


def _no_counterpart(key: str, value: object, expected: str) -> UserError:
    return UserError(
        f"{key} is {value!r}, which has no counterpart in CTranslate2 (it would have to be {expected}). "
        "The model cannot be exported."
    )


# Words


def _target(loaded: Loaded) -> Tokenizer | None:
    """The target's tokenizer, where it is another than the source's."""
    return None if loaded.target_tokenizer is loaded.tokenizer else loaded.target_tokenizer


def _vocabularies(loaded: Loaded, config: EncoderDecoderConfig, place: Path) -> tuple[list[str], list[str]]:
    """The tokens of the source and of the target, by their ids."""
    if loaded.tokenizer is None or loaded.target_tokenizer is None:
        raise UserError(f"{place} has no tokenizer, and CTranslate2 knows words by their tokens only.")
    sizes = config.source_vocabulary or config.vocabulary, config.vocabulary
    return _words(loaded.tokenizer, sizes[0]), _words(loaded.target_tokenizer, sizes[1])


def _words(tokenizer: Tokenizer, size: int) -> list[str]:
    """A token for every id of the model; an id that the tokenizer does not know gets a name that no text has."""
    tokens = (tokenizer.id_to_token(number) for number in range(size))
    return [f"⟨{number}⟩" if token is None else token for number, token in enumerate(tokens)]


def _describe(theirs: Any, config: EncoderDecoderConfig, sides: tuple[list[str], list[str]]) -> None:
    """What their config.json says: the special tokens by name, and the epsilon of all norms."""
    start, end, padding = config.tokens.start, config.tokens.end, config.tokens.padding
    assert start is not None
    assert end is not None
    words = sides[1]
    theirs.bos_token = theirs.decoder_start_token = words[start]
    theirs.eos_token = words[end]
    # It must be a word of the model. Where there is none for the unknown, no text of the tokenizer's needs one.
    unknown = SPECIAL_NAMES["unknown"]
    theirs.unk_token = unknown if unknown in words else words[end if padding is None else padding]
    theirs.add_source_bos, theirs.add_source_eos = False, True
    theirs.layer_norm_epsilon = config.encoder.norm.epsilon


# Weights


def _fill(specs: Any, config: EncoderDecoderConfig, tensors: Mapping[str, Tensor]) -> Any:
    """Their specification of the whole model, with our weights in it."""
    embedded = config.embedding.norm is not None
    encoder = specs.TransformerEncoderSpec(
        config.encoder.layers,
        config.encoder.attention.heads,
        **_options(specs, config.encoder),
        layernorm_embedding=embedded,
    )
    decoder = specs.TransformerDecoderSpec(
        config.decoder.layers,
        config.decoder.attention.heads,
        **_options(specs, config.decoder),
        layernorm_embedding=embedded,
    )
    encoder.embeddings[0].weight = tensors.get("source_vocabulary.weight", tensors["vocabulary.weight"])
    _fill_words(decoder, tensors)
    _fill_stack(encoder, config, tensors, "encoder", "source_input")
    _fill_stack(decoder, config, tensors, "decoder", "input")
    return specs.TransformerSpec(encoder, decoder)


def _fill_writer(specs: Any, config: LanguageModelConfig, tensors: Mapping[str, Tensor]) -> Any:
    """The same for a language model, which has no encoder to look at."""
    stack, sizes = config.decoder, config.decoder.attention.sizes(config.width)
    turned = {}
    if isinstance(config.position, RotaryConfig):
        turned = {"rotary_dim": 0, "rotary_interleave": False, "rotary_base": config.position.base}
    decoder = specs.TransformerDecoderSpec(
        stack.layers,
        sizes.heads,
        **_options(specs, stack),
        **turned,
        layernorm_embedding=config.embedding.norm is not None,
        with_encoder_attention=False,
        num_heads_kv=None if sizes.key_heads == sizes.heads else sizes.key_heads,
    )
    _fill_words(decoder, tensors)
    _fill_stack(decoder, config, tensors, "decoder", "input")
    return specs.TransformerDecoderModelSpec(decoder)


def _fill_words(decoder: Any, tensors: Mapping[str, Tensor]) -> None:
    """What words are looked up in, and what they are scored with."""
    decoder.embeddings.weight = tensors["vocabulary.weight"]
    decoder.projection.weight = tensors.get("output.weight", tensors["vocabulary.weight"])
    if "output_bias" in tensors:
        decoder.projection.bias = tensors["output_bias"]


def _fill_stack(
    spec: Any,
    config: EncoderDecoderConfig | LanguageModelConfig,
    tensors: Mapping[str, Tensor],
    name: str,
    source: str,
) -> None:
    """One side, from the positions to the last norm."""
    spec.scale_embeddings = config.width**0.5 if config.embedding.scale else 1.0
    if not isinstance(config.position, RotaryConfig):
        spec.position_encodings.encodings = _positions(config, tensors, source)
    if config.embedding.norm is not None:
        _norm(spec.layernorm_embedding, tensors, f"{source}.norm")
    if f"{name}.norm.weight" in tensors:
        _norm(spec.layer_norm, tensors, f"{name}.norm")
    for number, layer in enumerate(spec.layer):
        _layer(layer, tensors, f"{name}.blocks.{number}")


def _options(specs: Any, stack: StackConfig) -> dict[str, Any]:
    activation = stack.feed_forward.activation
    return {
        "pre_norm": stack.order == "pre",
        "activation": getattr(specs.Activation, _ACTIVATIONS[activation]),
        "ffn_glu": activation in _GATED,
        "rms_norm": stack.norm.kind == "rms",
    }


def _positions(
    config: EncoderDecoderConfig | LanguageModelConfig, tensors: Mapping[str, Tensor], source: str
) -> Tensor:
    if isinstance(config.position, SinusoidalConfig):
        return config.position.code(config.width).encode(torch.arange(POSITIONS))
    return tensors[f"{source}.position.table"]


def _layer(spec: Any, tensors: Mapping[str, Tensor], name: str) -> None:
    """Self-attention keeps queries, keys and values in one matrix; cross-attention keys and values."""
    own = f"{name}.attention.function"
    _linear(spec.self_attention.linear[0], tensors, f"{own}.query", f"{own}.source.key", f"{own}.source.value")
    _linear(spec.self_attention.linear[1], tensors, f"{own}.output")
    _norm(spec.self_attention.layer_norm, tensors, f"{name}.attention.norm")
    if f"{name}.cross.norm.weight" in tensors:
        cross = f"{name}.cross.function"
        # Where one projection serves all layers, each gets it as its own; equal tensors are stored once.
        memory = f"{cross}.source" if f"{cross}.source.key.weight" in tensors else "decoder.memory"
        _linear(spec.attention.linear[0], tensors, f"{cross}.query")
        _linear(spec.attention.linear[1], tensors, f"{memory}.key", f"{memory}.value")
        _linear(spec.attention.linear[2], tensors, f"{cross}.output")
        _norm(spec.attention.layer_norm, tensors, f"{name}.cross.norm")
    forward = f"{name}.feed_forward.function"
    gated = f"{forward}.gate.weight" in tensors
    _linear(spec.ffn.linear_0, tensors, f"{forward}.gate" if gated else f"{forward}.widen")
    if gated:
        _linear(spec.ffn.linear_0_noact, tensors, f"{forward}.widen")
    _linear(spec.ffn.linear_1, tensors, f"{forward}.narrow")
    _norm(spec.ffn.layer_norm, tensors, f"{name}.feed_forward.norm")


def _linear(spec: Any, tensors: Mapping[str, Tensor], *names: str) -> None:
    """One linear layer of theirs, made of one or several of ours side by side."""
    spec.weight = torch.cat([tensors[f"{name}.weight"] for name in names])
    if f"{names[0]}.bias" in tensors:
        spec.bias = torch.cat([tensors[f"{name}.bias"] for name in names])


def _norm(spec: Any, tensors: Mapping[str, Tensor], name: str) -> None:
    spec.gamma = tensors[f"{name}.weight"]
    if hasattr(spec, "beta"):
        spec.beta = tensors.get(f"{name}.bias", torch.zeros_like(spec.gamma))
