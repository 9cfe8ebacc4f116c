"""Small untrained models of every task to look into; weights are so large that each text gets its own answer."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from regard.data.tokenizer import TextTokenizer
from regard.data.tokenizer_training import EncoderTokenizerConfig, TokenizerConfig, train_tokenizer
from regard.data.trees import Tree, TreeSymbols, rooted
from regard.decode import DecodeConfig
from regard.look.opening import subject_of
from regard.look.subject import Subject
from regard.look.wire import RunRequest
from regard.look.writer import WriterSubject
from regard.model import EncoderDecoderConfig, LanguageModelConfig, TokensConfig
from regard.run import Loaded
from regard.task import Classifier, Filler, Generator, Labeller, Parser, Translator
from tests.model.small_models import build, encoder, encoder_decoder, language_model, stack, vision

TEXT = "the old cat ate a mouse, didn't it?"
SENTENCES = [TEXT, "the old man sat by the sea", "a mouse and a cat", "red sun, big sea, old dog"]
SEARCH = DecodeConfig(beams=3, longest_factor=1e-6, longest_extra=7)
TREES = ("(S (NP (DT the) (NN cat)) (VP (VBD slept)))", "(S (NP (NN man)) (VP (VBD ate) (NP (DT a) (NN mouse))))")
LABELS = ("good", "bad", "so-so")


@cache
def tokenizer(kind: str = "bpe") -> TextTokenizer:
    vocabulary = {"bpe": 290, "unigram": 290}.get(kind)
    return train_tokenizer(TokenizerConfig(kind=kind, vocabulary=vocabulary), SENTENCES * 3)  # type: ignore[arg-type]


@cache
def encoder_tokenizer() -> TextTokenizer:
    return train_tokenizer(EncoderTokenizerConfig(kind="bpe", vocabulary=290), SENTENCES * 3)


def writer(
    config: EncoderDecoderConfig | LanguageModelConfig | None = None,
    dtype: torch.dtype = torch.float64,
    *,
    translates: bool = False,
    kind: str = "bpe",
    decode: DecodeConfig = SEARCH,
) -> WriterSubject:
    """A translator, or a language model that writes (or, where it `translates`, has been taught to)."""
    config = encoder_decoder() if config is None else config
    text = tokenizer(kind)
    changes: dict[str, Any] = {"vocabulary": text.vocabulary, "tokens": TokensConfig(padding=0, start=1, end=2)}
    if getattr(config, "source_vocabulary", None) is not None:
        changes["source_vocabulary"] = text.vocabulary
    loaded = Loaded(build(config.model_copy(update=changes), dtype), text.tokenizer)
    writes = isinstance(config, EncoderDecoderConfig) or translates
    subject = subject_of(Translator(loaded, decode) if writes else Generator(loaded), "small")
    assert isinstance(subject, WriterSubject)
    return subject


def parser(dtype: torch.dtype = torch.float64) -> Subject:
    symbols = TreeSymbols.of([rooted(Tree.of(tree)) for tree in TREES])
    text = tokenizer()
    config = encoder_decoder(
        vocabulary=len(symbols),
        source_vocabulary=text.vocabulary,
        tie=False,
        tokens=TokensConfig(padding=0, start=1, end=2),
    )
    loaded = Loaded(build(config, dtype), text.tokenizer)
    return subject_of(Parser(loaded, symbols, DecodeConfig(beams=2, penalty="none", longest_factor=4.0)), "parser")


def reader(head: dict[str, Any], dtype: torch.dtype = torch.float64) -> Subject:
    """A model that fills gaps, labels texts or tags words, by its head."""
    text = encoder_tokenizer()
    tokens = {role: getattr(text, role) for role in ("padding", "mask", "separator", "classify")}
    model = build(encoder(vocabulary=text.vocabulary, head=head, tokens=tokens), dtype)
    loaded = Loaded(model, text.tokenizer)
    return subject_of(Filler(loaded) if head["kind"] == "fill" else Labeller(loaded), head["kind"])


def classifier(dtype: torch.dtype = torch.float32, **changes: Any) -> Subject:
    settings: dict[str, Any] = {"channels": 3, "classes": LABELS, "registers": 1, **changes}
    return subject_of(Classifier(Loaded(build(vision(**settings), dtype))), "pictures")


def picture(size: tuple[int, int] = (9, 12), seed: int = 0) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


@cache
def every_task() -> dict[str, Subject]:
    """One subject a task, in float32, as they are used."""
    single = torch.float32
    return {
        "translation": writer(dtype=single),
        "translation by a language model": writer(language_model(), single, translates=True),
        "language": writer(language_model(), single),
        "parsing": parser(single),
        "filling": reader({"kind": "fill"}, single),
        "labelling": reader({"kind": "classify", "labels": LABELS}, single),
        "tagging": reader({"kind": "tag", "labels": LABELS}, single),
        "pictures": classifier(),
    }


def request(subject: Subject, text: str = TEXT, **more: Any) -> RunRequest:
    """What to run on a subject of any task."""
    if subject.task == "pictures":
        from regard.look.readers import as_address

        return RunRequest(text="", picture=as_address(picture()), **more)
    if subject.task == "filling":
        text = "the old [MASK] ate a mouse"
    decoding = {"longest": 7} if isinstance(subject, WriterSubject) else None
    return RunRequest.model_validate({"text": text, "decoding": decoding, **more})


LAYOUTS: dict[str, dict[str, Any]] = {
    "multi-head": {},
    "grouped": {"key_heads": 2},
    "multi-query": {"key_heads": 1},
    "cosine": {"similarity": "cosine", "key_heads": 2},
    "dot": {"similarity": "dot"},
    "own widths": {"heads": 3, "head_width": 6, "value_width": 5},
    "sliding": {"pattern": "sliding(3)"},
    "latent": {"kind": "latent", "latent": 6, "head_width": 4, "rotary_width": 4, "value_width": 5},
}
"""Heads of every kind; those with a latent want rotary positions."""


def laid_out(layout: str, **more: Any) -> dict[str, Any]:
    """Settings of a stack with such heads, and of the positions that go with them."""
    from regard.attention import RotaryConfig, SinusoidalConfig

    rotary = layout in ("latent", "grouped")
    return {"stack": stack(**LAYOUTS[layout]), "position": RotaryConfig() if rotary else SinusoidalConfig(), **more}


def laid_out_writer(layout: str, kind: str, dtype: torch.dtype = torch.float64) -> WriterSubject:
    """A small translator or language model whose heads are of some kind."""
    settings = laid_out(layout)
    if kind == "language":
        return writer(language_model(decoder=settings["stack"], position=settings["position"]), dtype)
    config = encoder_decoder(encoder=settings["stack"], decoder=settings["stack"], position=settings["position"])
    return writer(config, dtype)


def saved(folder: Path, subject: Subject) -> Path:
    """A run folder with a translator of this subject's."""
    from regard.run import save

    loaded = getattr(subject, "translator", None) or getattr(subject, "generator", None)
    task = "translation" if hasattr(subject, "translator") else "language"
    origin = {"decode": SEARCH.plain(), "task": task}
    return save(loaded.model, folder, tokenizer=loaded.tokenizer, origin=origin)
