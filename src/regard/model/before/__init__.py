"""The models that came before the Transformer. Each is one file; a new one is a file and a line in the tables below."""

from regard.model.before.base import (
    CausalLMConfig,
    CausalSequenceModel,
    Seq2SeqConfig,
    SequenceConfig,
    SequenceToSequence,
)
from regard.model.before.convolutional.bytenet import ByteNetConfig
from regard.model.before.convolutional.convs2s import ConvolutionalConfig
from regard.model.before.convolutional.language_model import ConvolutionalLMConfig
from regard.model.before.fixed_window.context import ContextConfig
from regard.model.before.fixed_window.dnn1 import DNN1Config
from regard.model.before.fixed_window.dnn2 import DNN2Config
from regard.model.before.fixed_window.window import WindowLMConfig
from regard.model.before.ngram.model import NgramConfig
from regard.model.before.recurrent.bidirectional_lm import BidirectionalLMConfig
from regard.model.before.recurrent.deep_att import DeepAttConfig
from regard.model.before.recurrent.encoder_decoder import RecurrentConfig
from regard.model.before.recurrent.encoder_decoder_with_attention import RecurrentAttentionModelConfig
from regard.model.before.recurrent.gnmt import GnmtConfig
from regard.model.before.recurrent.language_model import RecurrentLMConfig
from regard.model.before.state import RecurrentState
from regard.model.before.word_vectors.config import CbowConfig, GloveConfig, SkipGramConfig, StaticVectorsConfig

CAUSAL_MODELS: dict[str, type[CausalLMConfig]] = {
    "bidirectional-lm": BidirectionalLMConfig,
    "convolutional-lm": ConvolutionalLMConfig,
    "ngram": NgramConfig,
    "recurrent-lm": RecurrentLMConfig,
    "window-lm": WindowLMConfig,
}
"""Models of one sequence, by the `kind` of their config."""

SEQ2SEQ_MODELS: dict[str, type[Seq2SeqConfig]] = {
    "bytenet": ByteNetConfig,
    "convolutional": ConvolutionalConfig,
    "context": ContextConfig,
    "dnn1": DNN1Config,
    "dnn2": DNN2Config,
    "recurrent": RecurrentConfig,
    "recurrent-attention": RecurrentAttentionModelConfig,
    "gnmt": GnmtConfig,
    "deep-att": DeepAttConfig,
}
"""Models of a target given a source, by the `kind` of their config."""

STATIC_VECTORS: dict[str, type[StaticVectorsConfig]] = {
    "skip-gram": SkipGramConfig,
    "cbow": CbowConfig,
    "glove": GloveConfig,
}
"""Models of one vector per word, by the `kind` of their config."""

__all__ = [
    "CAUSAL_MODELS",
    "SEQ2SEQ_MODELS",
    "STATIC_VECTORS",
    "CausalLMConfig",
    "CausalSequenceModel",
    "RecurrentState",
    "Seq2SeqConfig",
    "SequenceConfig",
    "SequenceToSequence",
    "StaticVectorsConfig",
]
