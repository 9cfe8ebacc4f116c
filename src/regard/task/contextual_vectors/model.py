"""Vectors of words in their context, and of sentences, from any layer of any model that reads texts.

A static vector is the same wherever a word stands. A model that reads the whole sentence has another vector for *bank*
beside a river than beside money: the hidden state of its tokens. An encoder has such states, and so do a language
model, the encoder of an encoder–decoder and a bidirectional language model (ELMo), so one class serves all of them. A
word of several tokens has their mean, or the first or last of them.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from regard.data.text.treebank_tokenizer import treebank_tokenize
from regard.data.tokenizers.tokenizer import TextTokenizer
from regard.errors import UserError
from regard.model import CausalLM, Encoder, Seq2SeqLM
from regard.run import LoadedModel
from regard.task.text_encoder import encoder_tokenizer, length_batches, max_text_tokens, surrounding_tokens

Layer = int | Literal["all"] | None
"""0 is the embeddings, None the last layer."""
Pooling = Literal["mean", "first", "last"]
"""Which of a word's tokens count."""
Sentence = str | Sequence[str]
"""A text, or its words."""
Text = str | Sequence[int]
"""A text, or its token ids."""
Progress = Callable[[int], None]


class TextVectors(NamedTuple):
    """The words of a text, and a vector for each."""

    words: tuple[str, ...]
    vectors: Tensor
    """(words, width); of all layers, (layers, words, width)"""


class TokenizedWords(NamedTuple):
    """The words of a sentence in a tokenizer's ids."""

    words: tuple[str, ...]
    ids: list[int]
    tokens: list[list[int]]
    """The positions of each word's tokens."""


class ContextModel:
    """A model of texts with its tokenizer, and the special tokens that it expects around a text."""

    def __init__(self, loaded: LoadedModel) -> None:
        model, where = loaded.model, "This model" if loaded.path is None else str(loaded.path)
        if not isinstance(model, Encoder | CausalLM | Seq2SeqLM):
            raise UserError(f"{where} reads no text; choose a model of texts.")
        if loaded.tokenizer is None:
            raise UserError(f"{where} has no tokenizer: it takes ids, but no text.")
        self.model: Encoder | CausalLM | Seq2SeqLM = model
        self.truncated = 0
        """How many texts `mean_vectors` has truncated so far."""
        special: Any = model.config.special_tokens
        if isinstance(model, Encoder):
            self.tokenizer = encoder_tokenizer(loaded.tokenizer, special)
            self.before, self.after = surrounding_tokens(special)
            return
        self.tokenizer = TextTokenizer(loaded.tokenizer, **special.plain())
        end = [] if special.eos is None else [special.eos]
        if isinstance(model, Seq2SeqLM):
            self.before, self.after = [], end
        elif model.is_bidirectional:  # a text begins where the one before it ended
            self.before, self.after = end if special.bos is None else [special.bos], end
        else:
            self.before, self.after = [] if special.bos is None else [special.bos], []

    @torch.no_grad()
    def hidden_states(
        self, rows: Sequence[Sequence[int]], layer: Layer = None, progress: Progress | None = None
    ) -> Iterator[tuple[list[int], list[Tensor], Tensor]]:
        """Batches of texts: their numbers, their hidden states, one tensor for each layer, and their lengths.

        Tokens and lengths include the special tokens around each text.  # (batch, tokens, width) each, (batch,)
        """
        framed = [[*self.before, *row, *self.after] for row in rows]
        filled = [number for number, row in enumerate(framed) if row]
        for numbers, tokens, lengths in length_batches([framed[number] for number in filled], self.model, progress):
            states = self.model.hidden_states(tokens, lengths)
            if layer is None:
                states = states[-1:]
            elif layer != "all":
                if not 0 <= layer < len(states):
                    raise UserError(
                        f"There is no layer {layer}; this model has layers 1 to {len(states) - 1}, and 0 is the input."
                    )
                states = [states[layer]]
            yield [filled[number] for number in numbers], [state.float() for state in states], lengths

    def word_vectors(
        self,
        sentences: Sequence[Sentence],
        layer: Layer = None,
        pooling: Pooling = "mean",
        progress: Progress | None = None,
    ) -> list[TextVectors]:
        """What `Pipeline.contextual_vectors` gives for each sentence."""
        if pooling not in ("mean", "first", "last"):
            raise UserError(f"pooling: found {pooling!r}; expected mean, first or last.")
        tokenized = [tokenize_words(self.tokenizer, sentence) for sentence in sentences]
        found: list[TextVectors | None] = [None] * len(tokenized)
        for numbers, states, _ in self.hidden_states([each.ids for each in tokenized], layer, progress):
            for row, number in enumerate(numbers):
                each = tokenized[number]
                layers = [pool_words(state[row, len(self.before) :], each.tokens, pooling).cpu() for state in states]
                found[number] = TextVectors(each.words, _stacked(layers, layer))
        return [each for each in found if each is not None]

    def mean_vectors(
        self,
        texts: Sequence[Text],
        layer: Layer = None,
        *,
        truncate: bool = False,
        progress: Progress | None = None,
    ) -> Tensor:
        """The mean over each text's tokens; zeros for a text without tokens.  # (texts, width)

        Of all layers it is (texts, layers, width). An encoder's special tokens count too, as in Sentence-BERT. With
        `truncate`, only the beginning of a text is read that is longer than the model can take.
        """
        rows = self.token_rows(texts)
        if truncate:
            self.truncated += sum(len(row) > self.room for row in rows)
            rows = [row[: self.room] for row in rows]
        whole = isinstance(self.model, Encoder)
        found: list[Tensor | None] = [None] * len(rows)
        for numbers, states, lengths in self.hidden_states(rows, layer, progress):
            first, last = (0, lengths) if whole else (len(self.before), lengths - len(self.after))
            position = torch.arange(states[0].shape[1], device=lengths.device)
            real = ((position >= first) & (position < torch.as_tensor(last)[:, None]))[..., None]  # (batch, tokens, 1)
            count = real.sum(dim=1).clamp(min=1)
            means = [(state.masked_fill(~real, 0).sum(dim=1) / count).cpu() for state in states]
            for row, number in enumerate(numbers):
                found[number] = _stacked([mean[row] for mean in means], layer)
        known = next((each for each in found if each is not None), None)
        zeros = torch.zeros(self._width(layer) if known is None else known.shape)
        return torch.stack([zeros, *(zeros if each is None else each for each in found)])[1:]

    def token_rows(self, texts: Sequence[Text]) -> list[list[int]]:
        """The token ids of each text, without special tokens. Ids are taken as they are, if there are such tokens."""
        plain = self.tokenizer.encode_batch([text for text in texts if isinstance(text, str)])
        encoded = iter(plain)
        rows = [next(encoded) if isinstance(text, str) else list(text) for text in texts]
        if len(plain) < len(rows):
            self.tokenizer.decode_batch(rows)  # refuses unknown ids
        return rows

    @property
    def room(self) -> int:
        """How many tokens a text may have."""
        return max_text_tokens(self.model) - len(self.before) - len(self.after)

    @property
    def layers(self) -> int:
        """The number of layers above the embeddings."""
        for _, states, _ in self.hidden_states([[0]], "all"):
            return len(states) - 1
        raise AssertionError("a text with a token has a vector")

    def _width(self, layer: Layer) -> tuple[int, ...]:
        """The shape of a text's vector."""
        for _, states, _ in self.hidden_states([[0]], layer):
            return tuple(_stacked([state[0, 0] for state in states], layer).shape)
        raise AssertionError("a text with a token has a vector")


def tokenize_words(tokenizer: TextTokenizer, sentence: Sentence) -> TokenizedWords:
    """The words of a text as the Penn Treebank splits them, or given words, and the tokens of each."""
    words = treebank_tokenize(sentence) if isinstance(sentence, str) else list(sentence)
    text = sentence if isinstance(sentence, str) else " ".join(words)
    if not words or not all(words):
        raise UserError("The text has no words; give a sentence." if not words else "A word is empty; remove it.")
    ids, spans = tokenizer.encode_with_offsets(text)
    tokens: list[list[int]] = []
    after_last = first = 0  # the end of the word before, and the first token that is not before this word
    for word in words:
        begin = text.index(word, after_last)
        end = begin + len(word)
        while first < len(spans) and spans[first][1] <= after_last:
            first += 1
        found = []
        for number in range(first, len(spans)):
            if spans[number][0] >= end:
                break
            # A space belongs to the word after it, also where it is a token of its own.
            if spans[number][1] > begin or spans[number][0] >= after_last:
                found.append(number)
        if not found:
            raise UserError(f"The tokenizer gives no token for the word {word!r}; remove the word or change it.")
        tokens.append(found)
        after_last = end
    return TokenizedWords(tuple(words), ids, tokens)


def pool_words(states: Tensor, tokens: Sequence[Sequence[int]], pooling: Pooling) -> Tensor:
    """A vector for each word from those of its tokens.  states: # (tokens, width); gives (words, width)"""
    if pooling == "mean":
        return torch.stack([states[list(each)].mean(dim=0) for each in tokens])
    return states[[each[0 if pooling == "first" else -1] for each in tokens]]


def _stacked(layers: list[Tensor], layer: Layer) -> Tensor:
    """One layer as it is, or all of them stacked."""
    if layer != "all":
        return layers[0]
    if len({each.shape for each in layers}) > 1:
        widths = ", ".join(str(each.shape[-1]) for each in layers)
        raise UserError(f"The layers of this model have different widths ({widths}); ask for one layer at a time.")
    return torch.stack(layers)
