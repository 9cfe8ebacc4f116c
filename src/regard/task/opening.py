"""A model from its folder, as what it is for."""

from pathlib import Path

from regard.model import Encoder, EncoderDecoder, FillConfig, LanguageModel
from regard.run import Loaded, find, load, read_facts
from regard.task.classifier import load_classifier, why_not
from regard.task.encoders import encoder_tokenizer
from regard.task.filler import load_filler
from regard.task.generator import load_generator
from regard.task.labeller import load_labeller
from regard.task.parser import load_parser
from regard.task.parsing_recipe import SYMBOLS
from regard.task.translator import load_translator


def open_model(name: str | Path) -> Loaded:
    """A model from a run folder, or one that ships by its name: a `Translator`, a `Generator`, a `Parser` …"""
    loaded, place = load(name), find(name)
    if (place / SYMBOLS).is_file():
        return load_parser(name)
    translates = isinstance(loaded.model, EncoderDecoder) or _task(place) == "translation"
    if translates and loaded.tokenizer is not None:
        return load_translator(name)
    if isinstance(loaded.model, LanguageModel) and loaded.tokenizer is not None:
        return load_generator(name)
    if why_not(loaded.model) is None:
        return load_classifier(name)
    if isinstance(loaded.model, Encoder) and loaded.tokenizer is not None:
        config = loaded.model.config
        if isinstance(config.head, FillConfig) and encoder_tokenizer(loaded.tokenizer, config.tokens).mask is not None:
            return load_filler(name)
        if config.labels:
            return load_labeller(name)
    return loaded


def _task(place: Path) -> object:
    """What a model was trained for, where its folder says so."""
    origin = read_facts(place).get("origin")
    return origin.get("task") if isinstance(origin, dict) else None
