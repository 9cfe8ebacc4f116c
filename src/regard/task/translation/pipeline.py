"""The translator: text of any length and layout in, the same layout in the other language out.

A `Translator` splits texts into sentences; a `LineTranslator` turns each sentence into a search request, and what the
search finds into text again.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import torch

from regard.data.text.pairs import Pair
from regard.data.text.sentence_splitting import Segment, SplitText, split_sentences
from regard.data.tokenizers.tokenizer import TextTokenizer
from regard.decode import (
    BatchDecoderModel,
    Constraints,
    DecodeConfig,
    Ensemble,
    Hypothesis,
    Request,
    score_forced,
    search_all,
    search_batch,
)
from regard.decode.shortlist import Shortlist, search_batch_shortlisted
from regard.errors import UserError
from regard.model import LanguageModel
from regard.run import LoadedModel
from regard.score import TranslationScore, score_translations
from regard.task.backend import Backend, batch_tokens_for, recorded_search, threads_for
from regard.task.constraints import make_constraints
from regard.task.pipeline import Pipeline
from regard.task.seq2seq import Seq2SeqModel
from regard.task.translation.capitals import recorded_capitals
from regard.task.translation.prompt_tokenizer import source_tokenizer_for
from regard.task.translation.recipe import ScoreConfig

MAX_CHARACTERS = 500
"""A longer sentence is cut, where it does least harm."""
MAX_REPEATS = 6
"""How often an n-gram may occur in a row unless `decode.max_repeats` says otherwise: text that people wrote hardly ever
repeats itself more than five times, but a model may do so without end outside its domain."""
_SCORING_ROWS = 64
"""Reference translations scored at once."""


@dataclass(frozen=True)
class Translation:
    """One translation of a sentence. `score` is what it was ranked by, `logprob` that of the model."""

    text: str
    score: float
    logprob: float
    tokens: tuple[int, ...]
    ended: bool
    """Whether it ends with the end token, or was cut at the maximum length."""
    token_logprobs: tuple[float, ...] = ()
    """The log-probability of each token, and of the end token if there is one."""
    alternatives: tuple[tuple[tuple[int, float], ...], ...] = ()
    """If requested, the most probable tokens of each step with their log-probabilities."""


@dataclass(frozen=True)
class TranslatedText:
    """A text with, for each of its sentences, the best translations, best first."""

    source: str
    sentences: tuple[tuple[str, tuple[Translation, ...]], ...]
    split: SplitText

    @property
    def text(self) -> str:
        """The text made of the best translations."""
        return self.candidate(0)

    def candidate(self, rank: int) -> str:
        """The text made of the translations of this rank (of a sentence's last one, if it has fewer); 0 is the best."""
        return self.split.join([found[min(rank, len(found) - 1)].text for _, found in self.sentences])

    @property
    def candidates(self) -> int:
        """How many candidate texts there are."""
        return max((len(found) for _, found in self.sentences), default=1)


@dataclass(frozen=True)
class LineTranslator:
    """A decoder with its tokenizers, which translates lines one by one, as they are."""

    model: BatchDecoderModel[Any]
    source_tokenizer: TextTokenizer
    target_tokenizer: TextTokenizer
    shortlist: Shortlist | None = None
    """If given, outputs consist of its tokens only."""
    batch_tokens: int | None = None
    """Source tokens searched at once; by default what suits the device."""

    def translate(
        self,
        lines: Sequence[str],
        decode: DecodeConfig,
        *,
        constraints: Constraints | None = None,
        alternatives: int = 0,
        seed_offsets: Sequence[int] | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> list[list[Translation]]:
        """The best translations of each line, best first, as many as `decode` asks for. A blank line stays blank.

        `progress` is called with the number of finished lines. Sampling uses the seed of `decode` plus a line's offset,
        by default its index.
        """
        end = self.target_tokenizer.eos
        if end is None:
            raise UserError("This model has no end token, so it cannot be decoded.")
        decode, constraints = translation_search(decode), constraints or Constraints()
        sources = self.source_tokenizer.encode_batch(lines)
        results: list[list[Translation]] = [[Translation("", 0.0, 0.0, (), ended=True)] for _ in lines]
        indices = [index for index, line in enumerate(lines) if line.strip() and sources[index]]
        blank = len(lines) - len(indices)
        requests = [
            Request(
                tuple(sources[index]),
                decode.max_length(len(sources[index]) + 1),
                decode,
                constraints.with_seed(decode.seed + (index if seed_offsets is None else seed_offsets[index])),
                alternatives,
            )
            for index in indices
        ]
        found = self._search(requests, end, None if progress is None else lambda done: progress(blank + done))
        for index, hypotheses in zip(indices, found, strict=True):
            results[index] = self._translations(hypotheses)
        if decode.min_length:
            self._replace_blank(results, dict(zip(indices, requests, strict=True)), end)
        return results

    def _search(
        self, requests: Sequence[Request], end: int, progress: Callable[[int], None] | None
    ) -> list[list[Hypothesis]]:
        return search_all(
            self.model,
            requests,
            end,
            batch_tokens=self.batch_tokens or batch_tokens_for(self.model),
            threads=threads_for(self.model, len(requests)),
            progress=progress,
            search=search_batch
            if self.shortlist is None
            else partial(search_batch_shortlisted, shortlist=self.shortlist),
        )

    def _translations(self, hypotheses: Sequence[Hypothesis]) -> list[Translation]:
        if not hypotheses:
            raise UserError("No output satisfies all constraints and limits; require, forbid or limit less.")
        texts = self.target_tokenizer.decode_batch([one.tokens for one in hypotheses])
        return [
            Translation(text, one.score, one.logprob, one.tokens, one.ended, one.token_logprobs, one.alternatives)
            for text, one in zip(texts, hypotheses, strict=True)
        ]

    def _replace_blank(self, results: list[list[Translation]], requests: dict[int, Request], end: int) -> None:
        """Drop translations without any text, whose tokens are spaces or special; if none is left, search again.

        The second search excludes such tokens. It is hardly ever needed.
        """
        blank = {}
        for index, request in requests.items():
            visible = [one for one in results[index] if one.text.strip()]
            results[index] = visible or results[index]
            if not visible:
                blank[index] = request
        if not blank:
            return
        tokenizer = self.target_tokenizer
        shown = tokenizer.decode_batch([[token] for token in tokenizer.ids])
        pairs = zip(tokenizer.ids, shown, strict=True)
        without = [(token,) for token, text in pairs if not text.strip() and token != end]
        again = [
            replace(each, constraints=replace(each.constraints, forbidden=(*each.constraints.forbidden, *without)))
            for each in blank.values()
        ]
        for index, hypotheses in zip(blank, self._search(again, end, None), strict=True):
            results[index] = self._translations(hypotheses)

    def logprobs(self, sources: Sequence[str], targets: Sequence[str]) -> list[tuple[float, ...]]:
        """The log-probability of each token of given translations, and of the end token behind them."""
        source_ids, target_ids = (
            self.source_tokenizer.encode_batch(sources),
            self.target_tokenizer.encode_batch(targets),
        )
        order = sorted(range(len(source_ids)), key=lambda index: (len(target_ids[index]), len(source_ids[index])))
        found: list[tuple[float, ...]] = [()] * len(order)
        for first in range(0, len(order), _SCORING_ROWS):
            rows = order[first : first + _SCORING_ROWS]
            given = [target_ids[index] for index in rows]
            state, start = self.model.prefill([source_ids[index] for index in rows], max(map(len, given)) + 1)
            scores = score_forced(self.model, state, start, given, eos=self.target_tokenizer.eos)
            for index, each in zip(rows, scores, strict=True):
                found[index] = each
        return found

    def score_pairs(self, pairs: Sequence[Pair], decode: DecodeConfig, score: ScoreConfig) -> TranslationScore:
        """Translate the sources of pairs and compare the best outputs with their targets."""
        found = self.translate([pair.source for pair in pairs], decode.only_best())
        outputs, references = [best.text for best, *_ in found], [pair.target for pair in pairs]
        return score_translations(outputs, references, tokenized=score.tokenized, lowercase=score.lowercase)


class Translator(Pipeline):
    """An encoder–decoder, or a language model trained to translate, with its tokenizers."""

    def __init__(self, loaded: LoadedModel, decode: DecodeConfig | None = None) -> None:
        """`decode` is by default the search that the run folder records."""
        super().__init__(loaded)
        assert isinstance(loaded.model, Seq2SeqModel)
        assert loaded.tokenizer is not None
        assert loaded.target_tokenizer is not None
        special = loaded.model.config.special_tokens.plain()
        self.decode = decode or recorded_search(loaded)
        self.seq2seq_model = loaded.model
        self.decoder_model: BatchDecoderModel[Any] = loaded.model
        """What is searched: this model, or an ensemble with others."""
        self.capitals = recorded_capitals(loaded)
        """If given, a sentence in capitals is translated in sentence case, and its translation is in capitals again."""
        self.backend = Backend(loaded.model)
        """Which implementation of the decoder runs, and in which precision."""
        self.shortlist: Shortlist | None = None
        """If given, outputs consist of its tokens only."""
        tokenizer = TextTokenizer(loaded.tokenizer, **special)
        shared = loaded.target_tokenizer is loaded.tokenizer
        self.source_tokenizer = source_tokenizer_for(loaded.model, tokenizer)
        self.target_tokenizer = tokenizer if shared else TextTokenizer(loaded.target_tokenizer, **special)

    @classmethod
    def unsupported_reason(cls, loaded: LoadedModel) -> str | None:
        if not isinstance(loaded.model, Seq2SeqModel):
            return "This is not a translator: its model does not generate text."
        if isinstance(loaded.model, LanguageModel) and loaded.origin.get("task") != "translation":
            return "This is not a translator: it is a language model that was not trained to translate."
        return None if loaded.tokenizer is not None else "This model has no tokenizer: it takes ids, but no text."

    def to(self, device: torch.device | str) -> Self:
        self.model.to(device)
        self.backend.reset()
        return self

    def search(self, beam_size: int | None) -> DecodeConfig:
        """The search settings, with another beam size if one is given."""
        return self.decode if beam_size is None else self.decode.updated({"beam_size": beam_size})

    def ensemble_with(self, others: "Sequence[Translator]") -> "Translator":
        """An ensemble of this translator and others that were trained with the same tokenizers."""
        for other in others:
            if (other.source_tokenizer.json, other.target_tokenizer.json) != (
                self.source_tokenizer.json,
                self.target_tokenizer.json,
            ):
                raise UserError("Models of an ensemble must have the same tokenizers, and these do not.")
        ensemble = Translator(self.loaded, self.decode)
        ensemble.decoder_model = Ensemble([self.decoder_model, *(other.decoder_model for other in others)])
        ensemble.shortlist = self.shortlist
        return ensemble

    def translate(
        self,
        text: str,
        *,
        beam_size: int | None = None,
        prefix: str = "",
        required: Sequence[str] = (),
        forbidden: Sequence[str] = (),
    ) -> str:
        """Translate a text, keeping its layout. A beam size of 1 is greedy search.

        The translation begins with `prefix`, contains the `required` words and none of the `forbidden` ones.
        """
        constraints = None
        if prefix or required or forbidden:
            tokenizer = self.target_tokenizer
            constraints = make_constraints(tokenizer, prefix=prefix, required=required, forbidden=forbidden)
        return self.translate_batch([text], self.search(beam_size).only_best(), constraints=constraints)[0].text

    def translate_batch(
        self,
        texts: Sequence[str],
        decode: DecodeConfig | None = None,
        progress: Callable[[int], None] | None = None,
        *,
        constraints: Constraints | None = None,
        alternatives: int = 0,
        seed_offsets: Sequence[int] | None = None,
        split: bool = True,
    ) -> list[TranslatedText]:
        """Translate texts sentence by sentence. `progress` is called with the number of finished sentences.

        `seed_offsets` are those of each text's first sentence, for sampling (see `LineTranslator.translate`). Without
        `split`, every line is translated as it is, as one sentence.
        """
        splits = [split_text(text, split) for text in texts]
        if constraints is not None and (constraints.prefix or constraints.required):
            _check_single_sentences(splits)
        sentences = [sentence for split in splits for sentence in split.sentences]
        offsets = None
        if seed_offsets is not None:
            pairs = zip(seed_offsets, splits, strict=True)
            offsets = [first + index for first, split in pairs for index in range(len(split.sentences))]
        # Constraints hold for the output as it is: a forbidden word must not come back in capitals.
        as_they_are = (constraints is not None and constraints.words) or not any(map(str.isupper, sentences))
        capitals = None if as_they_are else self.capitals
        translations = self.translate_sentences(
            sentences if capitals is None else capitals.sentence_case(sentences),
            decode,
            progress,
            constraints=constraints,
            alternatives=alternatives,
            seed_offsets=offsets,
        )
        found = iter(translations if capitals is None else capitals.restore(sentences, translations))
        return [
            TranslatedText(text, tuple((sentence, tuple(next(found))) for sentence in split.sentences), split)
            for text, split in zip(texts, splits, strict=True)
        ]

    def translate_sentences(
        self,
        sentences: Sequence[str],
        decode: DecodeConfig | None = None,
        progress: Callable[[int], None] | None = None,
        *,
        constraints: Constraints | None = None,
        alternatives: int = 0,
        seed_offsets: Sequence[int] | None = None,
    ) -> list[list[Translation]]:
        """Translate sentences as they are, without splitting: how a model is scored."""
        return self._line_translator(len(sentences)).translate(
            sentences,
            decode or self.decode,
            constraints=constraints,
            alternatives=alternatives,
            seed_offsets=seed_offsets,
            progress=progress,
        )

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[tuple[float, ...]]:
        """How probable given translations are: the log-probability of each token, and of the end token behind them."""
        if len(sources) != len(targets):
            raise UserError(f"There are {len(sources)} sources and {len(targets)} translations; give one for each.")
        model = LineTranslator(self.decoder_model, self.source_tokenizer, self.target_tokenizer)
        return model.logprobs(sources, targets)

    def _line_translator(self, sentences: int) -> LineTranslator:
        """With the decoder that suits this many sentences; an ensemble has only one."""
        alone = self.decoder_model is self.seq2seq_model
        model = self.backend.decoder_model(sentences) if alone else self.decoder_model
        return LineTranslator(model, self.source_tokenizer, self.target_tokenizer, self.shortlist)


def translation_search(decode: DecodeConfig) -> DecodeConfig:
    """The settings with the defaults of a translation."""
    return decode if decode.max_repeats is not None else decode.model_copy(update={"max_repeats": MAX_REPEATS})


def split_text(text: str, split: bool = True) -> SplitText:
    """The sentences that a text is translated as; without `split`, its lines, except blank ones."""
    if split:
        return split_sentences(text, max_characters=MAX_CHARACTERS)
    segments, done = [], 0
    for line in re.finditer(r"[^\r\n]+", text):
        if line[0].strip():
            segments.append(Segment(text[done : line.start()], line[0]))
            done = line.end()
    return SplitText(tuple(segments), text[done:])


def _check_single_sentences(splits: Sequence[SplitText]) -> None:
    for split in splits:
        if len(split.sentences) > 1:
            raise UserError(
                f"A prefix and required words apply to a single sentence, and this text has {len(split.sentences)}: "
                f"{split.sentences[0]!r} …; translate them one by one."
            )
