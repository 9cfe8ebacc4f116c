"""A model as something that can be looked into, from whatever `regard.load` gives."""

from pathlib import Path
from typing import Any

import torch

from regard.errors import UserError
from regard.look.readers import FillingSubject, LabellingSubject, PicturesSubject
from regard.look.subject import Subject
from regard.look.writers import LanguageSubject, ParsingSubject, TranslationSubject
from regard.run import Loaded
from regard.task import Classifier, Filler, Generator, Labeller, Parser, Translator, open_model


def subject_of(loaded: Loaded, name: str | None = None) -> Subject:
    """What can be looked into of a model that was loaded. It is called as its folder is, unless it has a name."""
    called = name or ("model" if loaded.place is None else loaded.place.resolve().name)
    subject = _subject(loaded, called)
    subject.folder = loaded.place
    return subject


def open_subject(name: str | Path, device: torch.device | str = "cpu") -> Subject:
    """The same from a run folder, or of a model that ships, by its name."""
    loaded: Any = open_model(name)
    return subject_of(loaded.to(device) if hasattr(loaded, "to") else loaded)


def _subject(loaded: Loaded, name: str) -> Subject:
    match loaded:
        case Parser():
            return ParsingSubject(loaded, name)
        case Translator():
            return TranslationSubject(loaded, name)
        case Generator():
            return LanguageSubject(loaded, name)
        case Filler():
            return FillingSubject(loaded, name)
        case Labeller():
            return LabellingSubject(loaded, name)
        case Classifier():
            return PicturesSubject(loaded, name)
    kind = getattr(loaded.config, "kind", "unknown")
    raise UserError(f"{name} cannot be looked into: a model of the kind {kind!r} needs a tokenizer, or labels to give.")
