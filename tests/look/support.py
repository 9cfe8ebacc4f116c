"""Small untrained traced models of every task; their weights are so large that every text gets its own output."""

import base64
import json
import math
import re
import zlib
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from regard.data.tokenizers.tokenizer import TextTokenizer
from regard.data.tokenizers.training import EncoderTokenizerConfig, TokenizerConfig, train_tokenizer
from regard.data.trees.cleaning import with_root
from regard.data.trees.linearization import TreeVocabulary
from regard.data.trees.tree import Tree
from regard.decode import DecodeConfig, LengthPenalty
from regard.look.models.auto import make_traced_model
from regard.look.models.autoregressive import TracedAutoregressiveModel
from regard.look.models.images import image_data_url
from regard.look.models.traced_model import TracedModel
from regard.look.schema import RunRequest
from regard.model import EncoderDecoderConfig, LanguageModelConfig, SequenceConfig, SpecialTokensConfig
from regard.model.before import Seq2SeqConfig
from regard.run import LoadedModel
from regard.task.classification.pipeline import TextLabeler
from regard.task.image_classification.pipeline import ImageClassifier
from regard.task.language_modeling.pipeline import TextGenerator
from regard.task.masked_lm.pipeline import FillMask
from regard.task.parsing.pipeline import Parser
from regard.task.translation.pipeline import Translator
from tests.model.small_models import build, encoder, encoder_decoder, language_model, stack, vision

TEXT = "the old cat ate a mouse, didn't it?"
SENTENCES = [TEXT, "the old man sat by the sea", "a mouse and a cat", "red sun, big sea, old dog"]
SEARCH = DecodeConfig(beam_size=3, max_length_ratio=1e-6, max_length_offset=7)
TREES = ("(S (NP (DT the) (NN cat)) (VP (VBD slept)))", "(S (NP (NN man)) (VP (VBD ate) (NP (DT a) (NN mouse))))")
LABELS = ("good", "bad", "so-so")


@cache
def tokenizer(kind: str = "bpe") -> TextTokenizer:
    vocabulary = {"bpe": 290, "unigram": 290}.get(kind)
    return train_tokenizer(TokenizerConfig(kind=kind, vocab_size=vocabulary), SENTENCES * 3)  # type: ignore[arg-type]


@cache
def encoder_tokenizer() -> TextTokenizer:
    return train_tokenizer(EncoderTokenizerConfig(kind="bpe", vocab_size=290), SENTENCES * 3)


def autoregressive_model(
    config: EncoderDecoderConfig | LanguageModelConfig | SequenceConfig | None = None,
    dtype: torch.dtype = torch.float64,
    *,
    translates: bool = False,
    kind: str = "bpe",
    decode: DecodeConfig = SEARCH,
) -> TracedAutoregressiveModel:
    """A translator, or a language model (one trained to translate, if it `translates`)."""
    config = encoder_decoder() if config is None else config
    text = tokenizer(kind)
    changes: dict[str, Any] = {
        "vocab_size": text.vocab_size,
        "special_tokens": SpecialTokensConfig(pad=0, bos=1, eos=2),
    }
    if getattr(config, "source_vocab_size", None) is not None:
        changes["source_vocab_size"] = text.vocab_size
    origin = {"task": "translation"} if translates else {}
    loaded = LoadedModel(build(config.model_copy(update=changes), dtype), text.tokenizer, origin=origin)
    is_translator = isinstance(config, EncoderDecoderConfig | Seq2SeqConfig) or translates
    traced_model = make_traced_model(Translator(loaded, decode) if is_translator else TextGenerator(loaded), "small")
    assert isinstance(traced_model, TracedAutoregressiveModel)
    return traced_model


def parser(dtype: torch.dtype = torch.float64, config: Seq2SeqConfig | None = None) -> TracedModel:
    """A parser: a Transformer, or a model of this config."""
    symbols = TreeVocabulary.from_trees([with_root(Tree.parse(tree)) for tree in TREES])
    text = tokenizer()
    settings = {
        "vocab_size": len(symbols),
        "source_vocab_size": text.vocab_size,
        "tie_weights": False,
        "special_tokens": SpecialTokensConfig(pad=0, bos=1, eos=2),
    }
    built = build(encoder_decoder(**settings) if config is None else config.model_copy(update=settings), dtype)
    loaded = LoadedModel(built, text.tokenizer)
    decode = DecodeConfig(beam_size=2, length_penalty=LengthPenalty(kind="none"), max_length_ratio=4.0)
    return make_traced_model(Parser(loaded, symbols, decode), "parser")


def encoder_model(head: dict[str, Any], dtype: torch.dtype = torch.float64) -> TracedModel:
    """A masked language model, a text classifier or a tagger, depending on its head."""
    text = encoder_tokenizer()
    tokens = {role: getattr(text, role) for role in ("pad", "mask", "sep", "cls")}
    model = build(encoder(vocab_size=text.vocab_size, head=head, special_tokens=tokens), dtype)
    loaded = LoadedModel(model, text.tokenizer)
    return make_traced_model(FillMask(loaded) if head["kind"] == "masked_lm" else TextLabeler(loaded), head["kind"])


def classifier(dtype: torch.dtype = torch.float32, **changes: Any) -> TracedModel:
    settings: dict[str, Any] = {"channels": 3, "classes": LABELS, "registers": 1, **changes}
    return make_traced_model(ImageClassifier(LoadedModel(build(vision(**settings), dtype))), "image-classification")


def sample_image(size: tuple[int, int] = (9, 12), seed: int = 0) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


@cache
def task_models() -> dict[str, TracedModel]:
    """A traced model for each task, in float32 as they are used."""
    single = torch.float32
    return {
        "translation": autoregressive_model(dtype=single),
        "translation by a language model": autoregressive_model(language_model(), single, translates=True),
        "language-modeling": autoregressive_model(language_model(), single),
        "parsing": parser(single),
        "masked-lm": encoder_model({"kind": "masked_lm"}, single),
        "text-classification": encoder_model({"kind": "classification", "labels": LABELS}, single),
        "token-classification": encoder_model({"kind": "token_classification", "labels": LABELS}, single),
        "image-classification": classifier(),
    }


def request(traced_model: TracedModel, text: str = TEXT, **more: Any) -> RunRequest:
    """A request for a model of any task."""
    if traced_model.input == "image":
        return RunRequest(text="", image=image_data_url(sample_image()), **more)
    if traced_model.task == "masked-lm":
        text = "the old [MASK] ate a mouse"
    decoding = {"max_new_tokens": 7} if isinstance(traced_model, TracedAutoregressiveModel) else None
    return RunRequest.model_validate({"text": text, "decoding": decoding, **more})


LAYOUTS: dict[str, dict[str, Any]] = {
    "multi-head": {},
    "grouped": {"kv_heads": 2},
    "multi-query": {"kv_heads": 1},
    "cosine": {"similarity": "cosine", "kv_heads": 2},
    "dot": {"similarity": "dot"},
    "own widths": {"heads": 3, "head_dim": 6, "value_head_dim": 5},
    "sliding": {"pattern": "sliding(3)"},
    "latent": {"kind": "latent", "kv_latent": 6, "head_dim": 4, "rope_head_dim": 4, "value_head_dim": 5},
}
"""Attention configs of every kind; latent attention needs rotary positions."""


def layout_settings(layout: str, **more: Any) -> dict[str, Any]:
    """The settings of a stack with such attention, and of its positions."""
    from regard.attention import RotaryConfig, SinusoidalConfig

    rotary = layout in ("latent", "grouped")
    return {"stack": stack(**LAYOUTS[layout]), "position": RotaryConfig() if rotary else SinusoidalConfig(), **more}


def model_with_layout(layout: str, kind: str, dtype: torch.dtype = torch.float64) -> TracedAutoregressiveModel:
    """A small translator or language model with attention of the given layout."""
    settings = layout_settings(layout)
    if kind == "language-modeling":
        return autoregressive_model(language_model(decoder=settings["stack"], position=settings["position"]), dtype)
    config = encoder_decoder(encoder=settings["stack"], decoder=settings["stack"], position=settings["position"])
    return autoregressive_model(config, dtype)


def save_run(folder: Path, traced_model: TracedModel) -> Path:
    """Save a traced model as a run folder."""
    from regard.run import save_model

    pipeline = traced_model.pipeline  # type: ignore[attr-defined]
    origin = {"decode": SEARCH.plain(), "task": traced_model.task}
    return save_model(pipeline.model, folder, tokenizer=pipeline.loaded.tokenizer, origin=origin)


def embedded(page: str) -> dict[str, Any]:
    """The data in a standalone file, with arrays in place of the references to them."""
    (content,) = re.findall(r'<script type="application/json" id="embedded">(.*?)</script>', page, flags=re.DOTALL)
    packed = {name: zlib.decompress(base64.b64decode(text)) for name, text in json.loads(content).items()}
    numbers = np.frombuffer(packed["float32"], dtype="<f4")

    def expand(value: dict[str, Any]) -> Any:
        if "float32" not in value:
            return value
        start, *shape = value["float32"]
        return numbers[start : start + math.prod(shape)].reshape(shape).tolist()

    return json.loads(packed["json"], object_hook=expand)
