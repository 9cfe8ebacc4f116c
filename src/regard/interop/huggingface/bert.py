"""BERT (`BertModel` and three heads on it): a post-norm encoder with learned positions and a vector for each segment.

What stands on the encoder goes by the architecture that config.json names: nothing but the pooler, a head that fills
gaps, one that labels a text, or one that labels each token.
"""

from collections.abc import Callable
from functools import partial

from regard.attention import HeadsConfig, LearnedConfig
from regard.interop.huggingface.family import ACTIVATIONS, Family, labels, settle_output, token_id, tokens
from regard.interop.huggingface.mapping import Rule, for_layers, part, parts
from regard.interop.huggingface.settings import Settings
from regard.interop.huggingface.weights import Weights
from regard.model import (
    AnyModelConfig,
    ClassifyConfig,
    EmbeddingConfig,
    EncoderConfig,
    EncoderTokensConfig,
    FeedForwardConfig,
    FillConfig,
    NoHeadConfig,
    NormConfig,
    StackConfig,
    TagConfig,
)
from regard.model.readout import AnyHead

_USUAL = {"pad_token_id": 0}
_WORDS, _OUTPUT = "embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"
WORD_BIAS, WORD_BIAS_AGAIN = "cls.predictions.bias", "cls.predictions.decoder.bias"
_POOLER, _NEXT_SENTENCE = r"pooler\..*", r"cls\.seq_relationship\..*"
_THEIRS, _OURS = "encoder.layer.{encoder}", "encoder.blocks.{encoder}"
_ATTENTION, _WIDEN = f"{_OURS}.attention.function", f"{_OURS}.feed_forward.function"

RULES = parts(
    (
        Rule(_WORDS, ("vocabulary.weight",)),
        Rule("embeddings.position_embeddings.weight", ("input.position.table",)),
        Rule("embeddings.token_type_embeddings.weight", ("segments.table",)),
        Rule(_OUTPUT, ("head.vocabulary.weight",)),
        Rule(WORD_BIAS, ("head.bias",)),
    ),
    part("embeddings.LayerNorm", "input.norm"),
    part(f"{_THEIRS}.attention.self.query", f"{_ATTENTION}.query"),
    part(f"{_THEIRS}.attention.self.key", f"{_ATTENTION}.source.key"),
    part(f"{_THEIRS}.attention.self.value", f"{_ATTENTION}.source.value"),
    part(f"{_THEIRS}.attention.output.dense", f"{_ATTENTION}.output"),
    part(f"{_THEIRS}.attention.output.LayerNorm", f"{_OURS}.attention.norm"),
    part(f"{_THEIRS}.intermediate.dense", f"{_WIDEN}.widen"),
    part(f"{_THEIRS}.output.dense", f"{_WIDEN}.narrow"),
    part(f"{_THEIRS}.output.LayerNorm", f"{_OURS}.feed_forward.norm"),
    part("pooler.dense", "pooler.turn"),
    part("cls.predictions.transform.dense", "head.turn"),
    part("cls.predictions.transform.LayerNorm", "head.norm"),
    part("classifier", "head.output"),
)

ReadHead = Callable[[Settings, Weights], AnyHead]


def _read(read_head: ReadHead, settings: Settings, weights: Weights) -> EncoderConfig:
    settings.must_be("is_decoder", False, "BERT's layers look both ways")
    settings.must_be("add_cross_attention", False, "an encoder has nothing else to look at")
    settings.must_be("position_embedding_type", "absolute", "its positions are added to the words")
    vocabulary, width = settings.whole("vocab_size"), settings.whole("hidden_size")
    norm, dropout = _norm(settings), settings.number("hidden_dropout_prob", 0.1)
    stack = StackConfig(
        layers=settings.whole("num_hidden_layers"),
        attention=HeadsConfig(
            heads=settings.whole("num_attention_heads"), dropout=settings.number("attention_probs_dropout_prob", 0.1)
        ),
        feed_forward=FeedForwardConfig(
            hidden=settings.whole("intermediate_size"),
            activation=settings.choice("hidden_act", ACTIVATIONS, "gelu"),
        ),
        order="post",
        norm=norm,
        dropout=dropout,
    )
    head = read_head(settings, weights)
    pooled = isinstance(head, ClassifyConfig) or (isinstance(head, NoHeadConfig) and _has_pooler(weights))
    return EncoderConfig(
        vocabulary=vocabulary,
        width=width,
        encoder=stack,
        position=LearnedConfig(limit=settings.whole("max_position_embeddings")),
        embedding=EmbeddingConfig(scale=False, norm=norm, dropout=dropout),
        segments=settings.whole("type_vocab_size", 2),
        pooler=pooled,
        head=head,
        tokens=_tokens(settings, vocabulary),
    )


def _no_head(settings: Settings, weights: Weights) -> AnyHead:
    return NoHeadConfig()


def _fill(settings: Settings, weights: Weights) -> AnyHead:
    tied = settle_output(weights, _WORDS, _OUTPUT, settings.flag("tie_word_embeddings", True))
    bias = weights.get(WORD_BIAS_AGAIN)  # the one that is read, where both are there
    weights.put(WORD_BIAS, weights.get(WORD_BIAS) if bias is None else bias)
    weights.put(WORD_BIAS_AGAIN, None)
    bend = settings.choice("hidden_act", {name: ours for name, ours in ACTIVATIONS.items() if ours != "relu2"}, "gelu")
    return FillConfig.read({"activation": bend, "norm": _norm(settings).plain(), "tie": tied})


def _classify(settings: Settings, weights: Weights) -> AnyHead:
    return ClassifyConfig(labels=labels(settings), pooling="pooler", dropout=_head_dropout(settings))


def _tag(settings: Settings, weights: Weights) -> AnyHead:
    return TagConfig(labels=labels(settings), dropout=_head_dropout(settings))


def _head_dropout(settings: Settings) -> float:
    return settings.number("classifier_dropout", settings.number("hidden_dropout_prob", 0.1))


def _norm(settings: Settings) -> NormConfig:
    return NormConfig(epsilon=settings.number("layer_norm_eps", 1e-12))


def _has_pooler(weights: Weights) -> bool:
    return weights.get("pooler.dense.weight") is not None


def _tokens(settings: Settings, vocabulary: int) -> EncoderTokensConfig:
    def found(key: str) -> int | None:
        return token_id(settings, vocabulary, _USUAL, key)

    return EncoderTokensConfig(
        **tokens(settings, vocabulary, "bos_token_id", _USUAL).plain(),
        mask=found("mask_token_id"),
        separator=found("sep_token_id"),
        classify=found("cls_token_id"),
    )


def _rules(config: AnyModelConfig) -> list[Rule]:
    return for_layers(RULES, config)


def _family(architecture: str, read_head: ReadHead, *unread: str) -> Family:
    """BERT with a head. `unread`: what files of this kind may hold beside it, left from how the model was trained."""
    return Family(
        name="BERT",
        kind="bert",
        architecture=architecture,
        bare=architecture if architecture == "BertModel" else None,
        prefix="bert.",
        read=partial(_read, read_head),
        rules=_rules,
        harmless=(r"embeddings\.position_ids", *unread),
        renames=((r"LayerNorm\.gamma$", "LayerNorm.weight"), (r"LayerNorm\.beta$", "LayerNorm.bias")),
    )


BERT = _family("BertModel", _no_head)
BERT_FILL = _family("BertForMaskedLM", _fill, _POOLER, _NEXT_SENTENCE)
BERT_CLASSIFY = _family("BertForSequenceClassification", _classify)
BERT_TAG = _family("BertForTokenClassification", _tag, _POOLER)
