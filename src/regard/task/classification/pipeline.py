"""The text and token classification pipeline: a text's label, or a tag for each of its words."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, overload

import torch
from torch import Tensor

from regard.data.labels.batches import encode_words
from regard.data.text.treebank_tokenizer import treebank_tokenize
from regard.data.tokenizers.tokenizer import TextTokenizer
from regard.errors import UserError, suggest_keywords
from regard.model import ClassificationHeadConfig, Encoder, TokenClassificationHeadConfig
from regard.run import LoadedModel
from regard.task.pipeline import Pipeline
from regard.task.text_encoder import encoder_and_tokenizer, length_batches, not_a_text_encoder, surrounding_tokens
from regard.train.task import Forward

Labels = list[tuple[str, float]]
"""Labels with their probabilities, most likely first."""
Progress = Callable[[int], None]
Texts = list[str] | tuple[str, ...]


class TaggedWords(NamedTuple):
    """The words of a text, their tags, and the tags' probabilities; `str` gives the text as *the/DT cat/NN*."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    probabilities: tuple[float, ...]

    def __str__(self) -> str:
        return " ".join(f"{word}/{tag}" for word, tag in zip(self.words, self.tags, strict=True))


class TextLabeler(Pipeline):
    """A text or token classifier with its tokenizer."""

    def __init__(self, loaded: LoadedModel) -> None:
        """Texts longer than `max_length` tokens are truncated before they are labeled, if the run folder records it."""
        super().__init__(loaded)
        self.encoder, self.tokenizer = encoder_and_tokenizer(loaded)
        recorded = loaded.origin.get("max_length")
        self.max_length = recorded if type(recorded) is int else None
        self.name = "This model" if loaded.path is None else str(loaded.path)

    @classmethod
    def unsupported_reason(cls, loaded: LoadedModel) -> str | None:
        if (reason := not_a_text_encoder(loaded)) is not None:
            return reason
        encoder, _ = encoder_and_tokenizer(loaded)
        head = encoder.config.head
        return (
            None if encoder.config.labels else f"This model has no labels: it was trained with the head {head.kind!r}."
        )

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels, by number."""
        return self.encoder.config.labels

    @overload
    def classify(self, text: str, *, top: int | None = None, progress: Progress | None = None) -> Labels: ...
    @overload
    def classify(self, text: Texts, *, top: int | None = None, progress: Progress | None = None) -> list[Labels]: ...

    @suggest_keywords
    def classify(self, text: str | Texts, *, top: int | None = None, progress: Progress | None = None) -> Any:
        """The labels of a text with their probabilities, most likely first; of a list of texts, a list of them.

            classifier.classify("A warm and clever film.")           # [("positive", 0.97), ("negative", 0.03)]
            classifier.classify(["A warm film.", "Dull."], top=1)

        `top` limits the labels to the most likely ones. `progress` is called with the number of finished texts.
        """
        if not isinstance(self.encoder.config.head, ClassificationHeadConfig):
            raise UserError(f"{self.name} tags words and does not label texts; use `regard tag`.")
        kept = len(self.labels) if top is None else min(top, len(self.labels))
        if kept < 1:
            raise UserError(f"top must be at least 1; found {top}.")
        texts = [text] if isinstance(text, str) else text
        logprobs = text_logprobs(self.encoder, self.tokenizer, texts, self.max_length, progress=progress)
        best = [row[0].exp().topk(kept) for row in logprobs]
        results = [
            [(self.labels[number], probability) for number, probability in zip(*each, strict=True)]
            for each in ((row.indices.tolist(), row.values.tolist()) for row in best)
        ]
        return results[0] if isinstance(text, str) else results

    @overload
    def tag(self, text: str, *, tokenized: bool = False, progress: Progress | None = None) -> TaggedWords: ...
    @overload
    def tag(self, text: Texts, *, tokenized: bool = False, progress: Progress | None = None) -> list[TaggedWords]: ...

    @suggest_keywords
    def tag(self, text: str | Texts, *, tokenized: bool = False, progress: Progress | None = None) -> Any:
        """The words of a sentence with their tags and the tags' probabilities; of a list of sentences, a list of them.

            tagger.tag("The cat ate the mouse.").tags                # ("DT", "NN", "VBD", "DT", "NN", ".")
            print(*tagger.tag(["Dogs bark .", "Cats sleep ."], tokenized=True), sep="\\n")

        Sentences are split into words as in the Penn Treebank; if they are `tokenized`, their words are separated by
        spaces. `progress` is called with the number of finished sentences.
        """
        texts = [text] if isinstance(text, str) else text
        words = [one.split() if tokenized else treebank_tokenize(one) for one in texts]
        results = self.tag_words(words, progress=progress)
        return results[0] if isinstance(text, str) else results

    def tag_words(self, sentences: Sequence[Sequence[str]], *, progress: Progress | None = None) -> list[TaggedWords]:
        """Tag sentences that are already split into words."""
        if not isinstance(self.encoder.config.head, TokenClassificationHeadConfig):
            raise UserError(f"{self.name} labels texts and does not tag words; use `regard classify`.")
        logprobs = word_logprobs(self.encoder, self.tokenizer, sentences, progress=progress)
        tagged = []
        for words, row in zip(sentences, logprobs, strict=True):
            best = row.exp().max(dim=-1)
            tags = tuple(self.labels[number] for number in best.indices.tolist())
            tagged.append(TaggedWords(tuple(words), tags, tuple(best.values.tolist())))
        return tagged


@torch.no_grad()
def text_logprobs(
    model: Encoder,
    text: TextTokenizer,
    texts: Sequence[str],
    max_length: int | None,
    *,
    forward: Forward | None = None,
    progress: Progress | None = None,
) -> list[Tensor]:
    """The log-probabilities of all labels, for each text.  # (1, labels) each

    `forward` is called instead of the model, if given.
    """
    prefix, suffix = surrounding_tokens(model.config.special_tokens)
    room = None if max_length is None else max(max_length - len(prefix) - len(suffix), 0)
    rows = [[*prefix, *ids[:room], *suffix] for ids in text.encode_batch(texts)]
    results: list[Tensor] = [torch.empty(0)] * len(rows)
    for numbers, tokens, lengths in length_batches(rows, model, progress):
        logprobs = (forward or model)(tokens, lengths=lengths).float().log_softmax(dim=-1).cpu()
        for number, row in zip(numbers, logprobs, strict=True):
            results[number] = row[None]
    return results


@torch.no_grad()
def word_logprobs(
    model: Encoder,
    text: TextTokenizer,
    sentences: Sequence[Sequence[str]],
    *,
    forward: Forward | None = None,
    progress: Progress | None = None,
) -> list[Tensor]:
    """The log-probabilities of all tags, for each word of each sentence.  # (words, tags) each"""
    prefix, suffix = surrounding_tokens(model.config.special_tokens)
    encoded = encode_words(sentences, text)
    rows = [[*prefix, *ids, *suffix] for ids, _ in encoded]
    results: list[Tensor] = [torch.empty(0)] * len(rows)
    for numbers, tokens, lengths in length_batches(rows, model, progress):
        firsts = [torch.tensor(encoded[number][1], dtype=torch.long) + len(prefix) for number in numbers]
        positions = torch.nn.utils.rnn.pad_sequence(firsts, batch_first=True).to(tokens.device)
        logprobs = (forward or model)(tokens, lengths=lengths, positions=positions).float().log_softmax(dim=-1).cpu()
        for number, row, first in zip(numbers, logprobs, firsts, strict=True):
            results[number] = row[: len(first)]
    return results
