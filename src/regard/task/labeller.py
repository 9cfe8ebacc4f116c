"""A model that labels, ready to use: a text in, its label out, or its words with a tag for each."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from regard.data.labelled import encode_words
from regard.data.tokenizer import TextTokenizer
from regard.data.words import split_words
from regard.errors import UserError
from regard.model import ClassifyConfig, Encoder, TagConfig
from regard.run import Loaded, find, load, read_facts
from regard.task.encoders import frame, in_batches, reader
from regard.train.task import Forward

Labels = list[tuple[str, float]]
"""Labels and how likely each is, the likeliest first."""
Progress = Callable[[int], None]


class TaggedWords(NamedTuple):
    """The words of a text, a tag for each, and how likely it is."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    probabilities: tuple[float, ...]

    def __str__(self) -> str:
        return " ".join(f"{word}/{tag}" for word, tag in zip(self.words, self.tags, strict=True))


class Labeller(Loaded):
    """An encoder that labels texts or tags words, with its tokenizer."""

    def __init__(self, loaded: Loaded, longest: int | None = None, name: str = "This model") -> None:
        """Texts of more than `longest` tokens are cut before they are labelled."""
        self.encoder, self.text = reader(loaded, name)
        if not self.encoder.config.labels:
            raise UserError(f"{name} knows no labels: it was trained with the head {self.encoder.config.head.kind!r}.")
        super().__init__(loaded.model, loaded.tokenizer, place=loaded.place)
        self.longest, self.name = longest, name

    @property
    def labels(self) -> tuple[str, ...]:
        """What it tells apart, by their numbers."""
        return self.encoder.config.labels

    def to(self, device: torch.device | str) -> "Labeller":
        self.model.to(device)
        return self

    def label(self, texts: Sequence[str], *, top: int | None = None, progress: Progress | None = None) -> list[Labels]:
        """For each text all labels, or the `top` likeliest, with their probabilities."""
        if not isinstance(self.encoder.config.head, ClassifyConfig):
            raise UserError(f"{self.name} tags words and does not label whole texts; use `regard tag` with it.")
        kept = len(self.labels) if top is None else min(top, len(self.labels))
        if kept < 1:
            raise UserError(f"At least one label is to be named; found {top}.")
        scores = text_scores(self.encoder, self.text, texts, self.longest, progress=progress)
        best = [row[0].exp().topk(kept) for row in scores]
        return [
            [(self.labels[number], chance) for number, chance in zip(*each, strict=True)]
            for each in ((row.indices.tolist(), row.values.tolist()) for row in best)
        ]

    def tag(self, texts: Sequence[str], *, progress: Progress | None = None) -> list[TaggedWords]:
        """The words of each text, split as treebanks have them, with their tags."""
        return self.tag_words([split_words(text) for text in texts], progress=progress)

    def tag_words(self, sentences: Sequence[Sequence[str]], *, progress: Progress | None = None) -> list[TaggedWords]:
        """The same for sentences that are split into words already."""
        if not isinstance(self.encoder.config.head, TagConfig):
            raise UserError(f"{self.name} labels whole texts and does not tag words; use `regard classify` with it.")
        scores = word_scores(self.encoder, self.text, sentences, progress=progress)
        found = []
        for words, row in zip(sentences, scores, strict=True):
            best = row.exp().max(dim=-1)
            tags = tuple(self.labels[number] for number in best.indices.tolist())
            found.append(TaggedWords(tuple(words), tags, tuple(best.values.tolist())))
        return found


@torch.no_grad()
def text_scores(
    model: Encoder,
    text: TextTokenizer,
    texts: Sequence[str],
    longest: int | None,
    *,
    forward: Forward | None = None,
    progress: Progress | None = None,
) -> list[Tensor]:
    """The log-probability of every label, for each text.  # (1, labels) each

    `forward` is how the model is called, if not as it is.
    """
    before, after = frame(model.config.tokens)
    room = None if longest is None else max(longest - len(before) - len(after), 0)
    rows = [[*before, *ids[:room], *after] for ids in text.encode_batch(texts)]
    found: list[Tensor] = [torch.empty(0)] * len(rows)
    for numbers, tokens, lengths in in_batches(rows, model.device, progress):
        scores = (forward or model)(tokens, lengths=lengths).float().log_softmax(dim=-1).cpu()
        for number, row in zip(numbers, scores, strict=True):
            found[number] = row[None]
    return found


@torch.no_grad()
def word_scores(
    model: Encoder,
    text: TextTokenizer,
    sentences: Sequence[Sequence[str]],
    *,
    forward: Forward | None = None,
    progress: Progress | None = None,
) -> list[Tensor]:
    """The log-probability of every tag, for each word of each sentence.  # (words, tags) each"""
    before, after = frame(model.config.tokens)
    encoded = encode_words(sentences, text)
    rows = [[*before, *ids, *after] for ids, _ in encoded]
    found: list[Tensor] = [torch.empty(0)] * len(rows)
    for numbers, tokens, lengths in in_batches(rows, model.device, progress):
        firsts = [torch.tensor(encoded[number][1], dtype=torch.long) + len(before) for number in numbers]
        places = torch.nn.utils.rnn.pad_sequence(firsts, batch_first=True).to(tokens.device)
        scores = (forward or model)(tokens, lengths=lengths, places=places).float().log_softmax(dim=-1).cpu()
        for number, row, first in zip(numbers, scores, firsts, strict=True):
            found[number] = row[: len(first)]
    return found


def load_labeller(name: str | Path, device: torch.device | str = "cpu") -> Labeller:
    """A model that labels texts or tags words, from a run folder; computes in float32."""
    place = find(name)
    loaded = load(place)
    origin = read_facts(place).get("origin")
    longest = origin.get("longest") if isinstance(origin, dict) else None
    labeller = Labeller(loaded, longest if type(longest) is int else None, str(place))
    labeller.model.float()
    return labeller.to(device)
