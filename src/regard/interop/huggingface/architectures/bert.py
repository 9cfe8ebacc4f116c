"""BERT (`BertModel` and three heads): a post-norm encoder with learned positions and token types.

The class in config.json decides what stands on the encoder: only the pooler, a masked LM head, a head that classifies a
text, or one that classifies each token.
"""

from collections.abc import Callable
from functools import partial

from regard.attention import LearnedConfig, MultiHeadConfig
from regard.interop.huggingface.architecture import (
    ACTIVATIONS,
    Architecture,
    labels,
    resolve_tied_embeddings,
    special_tokens,
    token_id,
)
from regard.interop.huggingface.hf_config import HFConfig
from regard.interop.huggingface.mapping import Rule, expand_layers, join_rules, module_rules
from regard.interop.huggingface.weights import Weights
from regard.model import (
    AnyModelConfig,
    ClassificationHeadConfig,
    EmbeddingConfig,
    EncoderConfig,
    EncoderSpecialTokensConfig,
    FeedForwardConfig,
    MaskedLMHeadConfig,
    NoHeadConfig,
    NormConfig,
    StackConfig,
    TokenClassificationHeadConfig,
)
from regard.model.heads import AnyHead

_DEFAULTS = {"pad_token_id": 0}
_EMBEDDING, _LM_HEAD = "embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"
LM_HEAD_BIAS, LM_HEAD_DECODER_BIAS = "cls.predictions.bias", "cls.predictions.decoder.bias"
_POOLER, _NEXT_SENTENCE = r"pooler\..*", r"cls\.seq_relationship\..*"
_HF_LAYER, _LAYER = "encoder.layer.{encoder}", "encoder.layers.{encoder}"
_ATTENTION, _FEED_FORWARD = f"{_LAYER}.self_attn", f"{_LAYER}.feed_forward"

RULES = join_rules(
    (
        Rule(_EMBEDDING, ("embed_tokens.weight",)),
        Rule("embeddings.position_embeddings.weight", ("embedding.embed_positions.weight",)),
        Rule("embeddings.token_type_embeddings.weight", ("embed_token_types.weight",)),
        Rule(_LM_HEAD, ("head.lm_head.weight",)),
        Rule(LM_HEAD_BIAS, ("head.bias",)),
    ),
    module_rules("embeddings.LayerNorm", "embedding.norm"),
    module_rules(f"{_HF_LAYER}.attention.self.query", f"{_ATTENTION}.q_proj"),
    module_rules(f"{_HF_LAYER}.attention.self.key", f"{_ATTENTION}.k_proj"),
    module_rules(f"{_HF_LAYER}.attention.self.value", f"{_ATTENTION}.v_proj"),
    module_rules(f"{_HF_LAYER}.attention.output.dense", f"{_ATTENTION}.o_proj"),
    module_rules(f"{_HF_LAYER}.attention.output.LayerNorm", f"{_LAYER}.self_attn_norm"),
    module_rules(f"{_HF_LAYER}.intermediate.dense", f"{_FEED_FORWARD}.up_proj"),
    module_rules(f"{_HF_LAYER}.output.dense", f"{_FEED_FORWARD}.down_proj"),
    module_rules(f"{_HF_LAYER}.output.LayerNorm", f"{_LAYER}.feed_forward_norm"),
    module_rules("pooler.dense", "pooler.dense"),
    module_rules("cls.predictions.transform.dense", "head.dense"),
    module_rules("cls.predictions.transform.LayerNorm", "head.norm"),
    module_rules("classifier", "head.classifier"),
)

ReadHead = Callable[[HFConfig, Weights], AnyHead]


def _read(read_head: ReadHead, hf_config: HFConfig, weights: Weights) -> EncoderConfig:
    hf_config.require("is_decoder", False, "BERT is bidirectional")
    hf_config.require("add_cross_attention", False, "an encoder has nothing to cross-attend to")
    hf_config.require("position_embedding_type", "absolute", "its positions are added to the token embeddings")
    vocab_size, width = hf_config.integer("vocab_size"), hf_config.integer("hidden_size")
    norm, dropout = _norm(hf_config), hf_config.number("hidden_dropout_prob", 0.1)
    stack = StackConfig(
        layers=hf_config.integer("num_hidden_layers"),
        attention=MultiHeadConfig(
            heads=hf_config.integer("num_attention_heads"),
            dropout=hf_config.number("attention_probs_dropout_prob", 0.1),
        ),
        feed_forward=FeedForwardConfig(
            hidden=hf_config.integer("intermediate_size"),
            activation=hf_config.choice("hidden_act", ACTIVATIONS, "gelu"),
        ),
        norm_position="post",
        norm=norm,
        dropout=dropout,
    )
    head = read_head(hf_config, weights)
    pooled = isinstance(head, ClassificationHeadConfig) or (isinstance(head, NoHeadConfig) and _has_pooler(weights))
    return EncoderConfig(
        vocab_size=vocab_size,
        width=width,
        encoder=stack,
        position=LearnedConfig(max_length=hf_config.integer("max_position_embeddings")),
        embedding=EmbeddingConfig(scale=False, norm=norm, dropout=dropout),
        token_types=hf_config.integer("type_vocab_size", 2),
        pooler=pooled,
        head=head,
        special_tokens=_tokens(hf_config, vocab_size),
    )


def _no_head(hf_config: HFConfig, weights: Weights) -> AnyHead:
    return NoHeadConfig()


def _masked_lm(hf_config: HFConfig, weights: Weights) -> AnyHead:
    tied = resolve_tied_embeddings(weights, _EMBEDDING, _LM_HEAD, hf_config.flag("tie_word_embeddings", True))
    bias = weights.get(LM_HEAD_DECODER_BIAS)  # the one transformers reads, if both exist
    weights.put(LM_HEAD_BIAS, weights.get(LM_HEAD_BIAS) if bias is None else bias)
    weights.put(LM_HEAD_DECODER_BIAS, None)
    activation = hf_config.choice(
        "hidden_act", {name: ours for name, ours in ACTIVATIONS.items() if ours != "relu2"}, "gelu"
    )
    return MaskedLMHeadConfig.read({"activation": activation, "norm": _norm(hf_config).plain(), "tie_weights": tied})


def _sequence_classification(hf_config: HFConfig, weights: Weights) -> AnyHead:
    return ClassificationHeadConfig(labels=labels(hf_config), pooling="pooler", dropout=_head_dropout(hf_config))


def _token_classification(hf_config: HFConfig, weights: Weights) -> AnyHead:
    return TokenClassificationHeadConfig(labels=labels(hf_config), dropout=_head_dropout(hf_config))


def _head_dropout(hf_config: HFConfig) -> float:
    return hf_config.number("classifier_dropout", hf_config.number("hidden_dropout_prob", 0.1))


def _norm(hf_config: HFConfig) -> NormConfig:
    return NormConfig(eps=hf_config.number("layer_norm_eps", 1e-12))


def _has_pooler(weights: Weights) -> bool:
    return weights.get("pooler.dense.weight") is not None


def _tokens(hf_config: HFConfig, vocab_size: int) -> EncoderSpecialTokensConfig:
    def found(key: str) -> int | None:
        return token_id(hf_config, vocab_size, _DEFAULTS, key)

    return EncoderSpecialTokensConfig(
        **special_tokens(hf_config, vocab_size, "bos_token_id", _DEFAULTS).plain(),
        mask=found("mask_token_id"),
        sep=found("sep_token_id"),
        cls=found("cls_token_id"),
    )


def _rules(config: AnyModelConfig) -> list[Rule]:
    return expand_layers(RULES, config)


def _architecture(architecture: str, read_head: ReadHead, *ignored: str) -> Architecture:
    """BERT with a head. `ignored`: what files of this class may hold beside it, left over from pretraining."""
    return Architecture(
        name="BERT",
        model_type="bert",
        class_name=architecture,
        base_class=architecture if architecture == "BertModel" else None,
        prefix="bert.",
        read=partial(_read, read_head),
        rules=_rules,
        ignored_tensors=(r"embeddings\.position_ids", *ignored),
        renames=((r"LayerNorm\.gamma$", "LayerNorm.weight"), (r"LayerNorm\.beta$", "LayerNorm.bias")),
    )


BERT = _architecture("BertModel", _no_head)
BERT_MASKED_LM = _architecture("BertForMaskedLM", _masked_lm, _POOLER, _NEXT_SENTENCE)
BERT_SEQUENCE_CLASSIFICATION = _architecture("BertForSequenceClassification", _sequence_classification)
BERT_TOKEN_CLASSIFICATION = _architecture("BertForTokenClassification", _token_classification, _POOLER)
