"""Export a model to CTranslate2, an inference engine without PyTorch that is fast on CPUs.

CTranslate2 describes a model as a tree of specs, which are filled with weights and saved. It works on tokens as
strings: the exported folder contains the tokens as its vocabulary, and tokenizer.json.

    source = Tokenizer.from_file("OUT/tokenizer.json")
    tokens = source.encode("The cat ate the mouse.", add_special_tokens=False).tokens
    result = ctranslate2.Translator("OUT").translate_batch([tokens], beam_size=1)

CTranslate2 itself appends EOS to a source. Positions are stored as a table, so there is a maximum length, except for
language models with RoPE.
"""

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from regard.attention import LearnedConfig, RotaryConfig, SinusoidalConfig
from regard.data.tokenizers.tokenizer import SPECIAL_NAMES
from regard.errors import UserError, how_to_install
from regard.files import check_new_folder, new_folder
from regard.model import EncoderDecoderConfig, LanguageModelConfig, NormConfig, SequenceConfig, StackConfig
from regard.run import LoadedModel, find_model, load_model

POSITIONS = 1024
"""Rows of an exported sinusoidal table, if our model has no maximum length."""
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
    """Export a translator or a language model to CTranslate2, with its weights stored as `quantization`.

    Returns a sentence that describes the export. If CTranslate2 cannot compute the model exactly, the error names the
    setting that has no counterpart.
    """
    model_folder, out = find_model(folder), Path(out)
    check_new_folder(out)
    if quantization not in QUANTIZATIONS:
        raise UserError(f"There is no quantization {quantization!r}; choose one of {', '.join(QUANTIZATIONS)}.")
    loaded = load_model(folder)
    config = loaded.config
    if isinstance(config, LanguageModelConfig):
        return _export_language_model(loaded, config, model_folder, out, quantization)
    if isinstance(config, SequenceConfig):
        raise UserError(
            f"{model_folder} is a model of kind {config.kind!r}, which CTranslate2 does not have; only Transformers "
            "can be exported."
        )
    if not isinstance(config, EncoderDecoderConfig):
        raise UserError(f"{model_folder} is neither a translator nor a language model, so CTranslate2 cannot run it.")
    _check_encoder_decoder(config)
    source_tokens, target_tokens = _vocabularies(loaded, config, model_folder)
    spec = _encoder_decoder_spec(_specs(), config, _weights(loaded))
    _set_special_tokens(spec.config, config, target_tokens)
    spec.register_source_vocabulary(source_tokens)
    spec.register_target_vocabulary(target_tokens)
    spec.validate()
    spec.optimize(quantization=quantization)
    target_tokenizer = None if loaded.target_tokenizer is loaded.tokenizer else loaded.target_tokenizer
    with new_folder(out) as temporary:
        spec.save(str(temporary))
        for name, tokenizer in (("tokenizer.json", loaded.tokenizer), ("target_tokenizer.json", target_tokenizer)):
            if tokenizer is not None:
                tokenizer.save(str(temporary / name))
    return _summary(config, quantization)


def _export_language_model(
    loaded: LoadedModel, config: LanguageModelConfig, model_folder: Path, out: Path, quantization: str
) -> str:
    if loaded.tokenizer is None:
        raise _no_tokenizer(model_folder)
    _check_language_model(config)
    tokens = _tokens_by_id(loaded.tokenizer, config.vocab_size)
    spec = _language_model_spec(_specs(), config, _weights(loaded))
    bos, eos = config.special_tokens.bos, config.special_tokens.eos
    assert eos is not None
    spec.config.eos_token = spec.config.unk_token = tokens[eos]  # callers pass ids, so that no token is unknown
    spec.config.bos_token = tokens[eos if bos is None else bos]
    spec.config.layer_norm_epsilon = config.decoder.norm.eps
    spec.register_vocabulary(tokens)
    spec.validate()
    spec.optimize(quantization=quantization)
    with new_folder(out) as temporary:
        spec.save(str(temporary))
        loaded.tokenizer.save(str(temporary / "tokenizer.json"))
    return _summary(config, quantization)


def _summary(config: EncoderDecoderConfig | LanguageModelConfig, quantization: str) -> str:
    return f"exported for CTranslate2 in {quantization}, with its vocabulary of {config.vocab_size:,} tokens."


def _weights(loaded: LoadedModel) -> dict[str, Tensor]:
    return {name: tensor.float() for name, tensor in loaded.model.state_dict().items()}


def _specs() -> Any:
    """The module ctranslate2.specs. The package has no types and is optional."""
    try:
        return importlib.import_module("ctranslate2.specs")
    except ImportError:
        raise UserError(f"CTranslate2 is not installed; {how_to_install('interop')}.") from None


def _check_encoder_decoder(config: EncoderDecoderConfig) -> None:
    """Raise an error for the first setting without a counterpart in CTranslate2."""
    if not isinstance(config.position, SinusoidalConfig | LearnedConfig):
        raise _no_counterpart("position.kind", config.position.kind, "sinusoidal or learned")
    if config.position.combine != "add":
        raise _no_counterpart("position.combine", config.position.combine, "add")
    _check_embedding_norm(config.embedding.norm, config.encoder.norm)
    for name, stack in {"encoder": config.encoder, "decoder": config.decoder}.items():
        attention, sizes = stack.attention, stack.attention.sizes(config.width)
        head_dim = config.width // sizes.heads
        for key, value, expected in (
            ("residual", stack.residual, (True,)),
            ("attention.kv_heads", sizes.kv_heads, (sizes.heads,)),
            ("attention.head_dim", sizes.head_dim, (head_dim,)),
            ("attention.value_head_dim", sizes.value_head_dim, (head_dim,)),
            ("attention.similarity", attention.similarity, ("scaled",)),
            ("attention.pattern", attention.pattern, ("full",)),
            ("attention.output_projection", attention.output_projection, (True,)),
            ("dense_prefix.layers", 0 if stack.dense_prefix is None else stack.dense_prefix.layers, (0,)),
            ("feed_forward.kind", stack.feed_forward.kind, ("dense",)),
            ("feed_forward.activation", stack.feed_forward.activation, tuple(_ACTIVATIONS)),
            ("norm.kind", stack.norm.kind, (config.encoder.norm.kind,)),
            ("norm.eps", stack.norm.eps, (config.encoder.norm.eps,)),
        ):
            if value not in expected:
                raise _no_counterpart(f"{name}.{key}", value, " or ".join(str(each) for each in expected))
    for role in ("bos", "eos"):
        if getattr(config.special_tokens, role) is None:
            raise UserError(
                f"special_tokens.{role} is not set, so neither regard nor CTranslate2 can decode with this model."
            )


def _check_language_model(config: LanguageModelConfig) -> None:
    """Raise an error as `_check_encoder_decoder` does; RoPE and grouped-query attention are supported here."""
    position, attention = config.position, config.decoder.attention
    sizes = attention.sizes(config.width)
    if isinstance(position, RotaryConfig):
        if position.scaling is not None:
            raise _no_counterpart("position.scaling.kind", position.scaling.kind, "left out")
    elif not isinstance(position, SinusoidalConfig | LearnedConfig):
        raise _no_counterpart("position.kind", position.kind, "sinusoidal, learned or rotary")
    elif position.combine != "add":
        raise _no_counterpart("position.combine", position.combine, "add")
    head_dim = config.width // sizes.heads
    dense_layers = 0 if config.decoder.dense_prefix is None else config.decoder.dense_prefix.layers
    for key, value, expected in (
        ("decoder.residual", config.decoder.residual, (True,)),
        ("decoder.attention.head_dim", sizes.head_dim, (head_dim,)),
        ("decoder.attention.value_head_dim", sizes.value_head_dim, (head_dim,)),
        ("decoder.attention.similarity", attention.similarity, ("scaled",)),
        ("decoder.attention.pattern", attention.pattern, ("full",)),
        ("decoder.attention.output_projection", attention.output_projection, (True,)),
        ("decoder.dense_prefix.layers", dense_layers, (0,)),
        ("decoder.feed_forward.kind", config.decoder.feed_forward.kind, ("dense",)),
        ("decoder.feed_forward.activation", config.decoder.feed_forward.activation, tuple(_ACTIVATIONS)),
    ):
        if value not in expected:
            raise _no_counterpart(key, value, " or ".join(str(each) for each in expected))
    _check_embedding_norm(config.embedding.norm, config.decoder.norm)
    if config.special_tokens.eos is None:
        raise UserError("special_tokens.eos is not set, but CTranslate2 needs an EOS token.")


def _check_embedding_norm(norm: NormConfig | None, others: NormConfig) -> None:
    """CTranslate2 has one kind and one epsilon for all norms of a model."""
    if norm is not None and norm.kind != others.kind:
        raise _no_counterpart("embedding.norm.kind", norm.kind, others.kind)
    if norm is not None and norm.eps != others.eps:
        raise _no_counterpart("embedding.norm.eps", norm.eps, str(others.eps))


def _no_counterpart(key: str, value: object, expected: str) -> UserError:
    return UserError(
        f"{key} is {value!r}, which has no counterpart in CTranslate2 (it must be {expected}). "
        "The model cannot be exported."
    )


def _no_tokenizer(model_folder: Path) -> UserError:
    return UserError(f"{model_folder} has no tokenizer, but CTranslate2 needs the tokens as strings.")


# --- vocabularies


def _vocabularies(loaded: LoadedModel, config: EncoderDecoderConfig, model_folder: Path) -> tuple[list[str], list[str]]:
    """The source and the target tokens, by id."""
    if loaded.tokenizer is None or loaded.target_tokenizer is None:
        raise _no_tokenizer(model_folder)
    source_size = config.source_vocab_size or config.vocab_size
    return _tokens_by_id(loaded.tokenizer, source_size), _tokens_by_id(loaded.target_tokenizer, config.vocab_size)


def _tokens_by_id(tokenizer: Tokenizer, size: int) -> list[str]:
    """A token for every id of the model; an id without one gets a name that does not occur in text."""
    tokens = (tokenizer.id_to_token(token_id) for token_id in range(size))
    return [f"⟨{token_id}⟩" if token is None else token for token_id, token in enumerate(tokens)]


def _set_special_tokens(ct2_config: Any, config: EncoderDecoderConfig, tokens: list[str]) -> None:
    """Set the special tokens and the epsilon of all norms in CTranslate2's config.json."""
    bos, eos, pad = config.special_tokens.bos, config.special_tokens.eos, config.special_tokens.pad
    assert bos is not None
    assert eos is not None
    ct2_config.bos_token = ct2_config.decoder_start_token = tokens[bos]
    ct2_config.eos_token = tokens[eos]
    # CTranslate2 requires an UNK token that is in the vocabulary. A tokenizer without one never needs it.
    unk = SPECIAL_NAMES["unk"]
    ct2_config.unk_token = unk if unk in tokens else tokens[eos if pad is None else pad]
    ct2_config.add_source_bos, ct2_config.add_source_eos = False, True
    ct2_config.layer_norm_epsilon = config.encoder.norm.eps


# --- weights


def _encoder_decoder_spec(specs: Any, config: EncoderDecoderConfig, tensors: Mapping[str, Tensor]) -> Any:
    """The spec of a translator, filled with our weights."""
    layernorm_embedding = config.embedding.norm is not None
    encoder = specs.TransformerEncoderSpec(
        config.encoder.layers,
        config.encoder.attention.heads,
        **_options(specs, config.encoder),
        layernorm_embedding=layernorm_embedding,
    )
    decoder = specs.TransformerDecoderSpec(
        config.decoder.layers,
        config.decoder.attention.heads,
        **_options(specs, config.decoder),
        layernorm_embedding=layernorm_embedding,
    )
    encoder.embeddings[0].weight = tensors.get("source_embed_tokens.weight", tensors["embed_tokens.weight"])
    _fill_embedding(decoder, tensors)
    _fill_stack(encoder, config, tensors, "encoder", "source_embedding")
    _fill_stack(decoder, config, tensors, "decoder", "embedding")
    return specs.TransformerSpec(encoder, decoder)


def _language_model_spec(specs: Any, config: LanguageModelConfig, tensors: Mapping[str, Tensor]) -> Any:
    """The spec of a language model, filled with our weights."""
    stack, sizes = config.decoder, config.decoder.attention.sizes(config.width)
    rotary = {}
    if isinstance(config.position, RotaryConfig):
        rotary = {"rotary_dim": 0, "rotary_interleave": False, "rotary_base": config.position.theta}
    decoder = specs.TransformerDecoderSpec(
        stack.layers,
        sizes.heads,
        **_options(specs, stack),
        **rotary,
        layernorm_embedding=config.embedding.norm is not None,
        with_encoder_attention=False,
        num_heads_kv=None if sizes.kv_heads == sizes.heads else sizes.kv_heads,
    )
    _fill_embedding(decoder, tensors)
    _fill_stack(decoder, config, tensors, "decoder", "embedding")
    return specs.TransformerDecoderModelSpec(decoder)


def _fill_embedding(decoder: Any, tensors: Mapping[str, Tensor]) -> None:
    """Fill the token embedding and the LM head."""
    decoder.embeddings.weight = tensors["embed_tokens.weight"]
    decoder.projection.weight = tensors.get("lm_head.weight", tensors["embed_tokens.weight"])
    if "lm_head_bias" in tensors:
        decoder.projection.bias = tensors["lm_head_bias"]


def _fill_stack(
    spec: Any,
    config: EncoderDecoderConfig | LanguageModelConfig,
    tensors: Mapping[str, Tensor],
    name: str,
    embedding: str,
) -> None:
    """Fill one stack: positions, the norm of the embedding, layers and the final norm."""
    spec.scale_embeddings = config.width**0.5 if config.embedding.scale else 1.0
    if not isinstance(config.position, RotaryConfig):
        spec.position_encodings.encodings = _positions(config, tensors, embedding)
    if config.embedding.norm is not None:
        _fill_norm(spec.layernorm_embedding, tensors, f"{embedding}.norm")
    if f"{name}.final_norm.weight" in tensors:
        _fill_norm(spec.layer_norm, tensors, f"{name}.final_norm")
    for index, layer in enumerate(spec.layer):
        _fill_layer(layer, tensors, f"{name}.layers.{index}")


def _options(specs: Any, stack: StackConfig) -> dict[str, Any]:
    activation = stack.feed_forward.activation
    return {
        "pre_norm": stack.norm_position == "pre",
        "activation": getattr(specs.Activation, _ACTIVATIONS[activation]),
        "ffn_glu": activation in _GATED,
        "rms_norm": stack.norm.kind == "rms",
    }


def _positions(
    config: EncoderDecoderConfig | LanguageModelConfig, tensors: Mapping[str, Tensor], embedding: str
) -> Tensor:
    if isinstance(config.position, SinusoidalConfig):
        return config.position.encoding(config.width).encode(torch.arange(POSITIONS))
    return tensors[f"{embedding}.embed_positions.weight"]


def _fill_layer(spec: Any, tensors: Mapping[str, Tensor], name: str) -> None:
    """Fill one layer. CTranslate2 fuses the projections q, k, v of self-attention, and k, v of cross-attention."""
    attention = f"{name}.self_attn"
    projections = (f"{attention}.q_proj", f"{attention}.k_proj", f"{attention}.v_proj")
    _fill_linear(spec.self_attention.linear[0], tensors, *projections)
    _fill_linear(spec.self_attention.linear[1], tensors, f"{attention}.o_proj")
    _fill_norm(spec.self_attention.layer_norm, tensors, f"{attention}_norm")
    cross = f"{name}.cross_attn"
    if f"{cross}_norm.weight" in tensors:
        # A projection shared by all layers (cross_kv = "shared") is given to each; equal tensors are stored once.
        kv = cross if f"{cross}.k_proj.weight" in tensors else "decoder.cross_kv"
        _fill_linear(spec.attention.linear[0], tensors, f"{cross}.q_proj")
        _fill_linear(spec.attention.linear[1], tensors, f"{kv}.k_proj", f"{kv}.v_proj")
        _fill_linear(spec.attention.linear[2], tensors, f"{cross}.o_proj")
        _fill_norm(spec.attention.layer_norm, tensors, f"{cross}_norm")
    feed_forward = f"{name}.feed_forward"
    gated = f"{feed_forward}.gate_proj.weight" in tensors
    _fill_linear(spec.ffn.linear_0, tensors, f"{feed_forward}.gate_proj" if gated else f"{feed_forward}.up_proj")
    if gated:
        _fill_linear(spec.ffn.linear_0_noact, tensors, f"{feed_forward}.up_proj")
    _fill_linear(spec.ffn.linear_1, tensors, f"{feed_forward}.down_proj")
    _fill_norm(spec.ffn.layer_norm, tensors, f"{feed_forward}_norm")


def _fill_linear(spec: Any, tensors: Mapping[str, Tensor], *names: str) -> None:
    """Fill a linear layer with one or several of ours, concatenated."""
    spec.weight = torch.cat([tensors[f"{name}.weight"] for name in names])
    if f"{names[0]}.bias" in tensors:
        spec.bias = torch.cat([tensors[f"{name}.bias"] for name in names])


def _fill_norm(spec: Any, tensors: Mapping[str, Tensor], name: str) -> None:
    spec.gamma = tensors[f"{name}.weight"]
    if hasattr(spec, "beta"):
        spec.beta = tensors.get(f"{name}.bias", torch.zeros_like(spec.gamma))
