"""The translator: text of any length and layout in, the same layout in the other language out.

A `Translator` splits texts into sentences; a `LineTranslator` turns each sentence into a search request, and what the
search finds into text again.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, Self, overload

import torch

from regard.data.text.pairs import Pair
from regard.data.text.sentence_splitting import SplitText, split_lines, split_sentences
from regard.data.tokenizers.tokenizer import TextTokenizer
from regard.decode import (
    BatchDecoderModel,
    Constraints,
    DecodeConfig,
    Ensemble,
    Hypothesis,
    Request,
    score_all,
    search_all,
    search_batch,
)
from regard.decode.shortlist import Shortlist, search_batch_shortlisted
from regard.errors import UserError
from regard.model import CausalLM
from regard.run import LoadedModel
from regard.score import TranslationScore, score_translations
from regard.task.backend import Backend, batch_tokens_for, recorded_search, threads_for
from regard.task.constraints import make_constraints
from regard.task.pipeline import Pipeline
from regard.task.seq2seq import Seq2SeqModel
from regard.task.translation.capitals import recorded_capitals
from regard.task.translation.prompt_tokenizer import source_tokenizer_for
from regard.task.translation.recipe import ScoreConfig
from regard.task.translation.result import TranslatedText, Translation
from regard.task.translation.unknown_words import (
    Dictionary,
    check_replaceable,
    find_dictionary,
    replace_unknown_words,
)

MAX_CHARACTERS = 500
"""A longer sentence is cut, where it does least harm."""
MAX_REPEATS = 6
"""How often an n-gram may occur in a row unless `decode.max_repeats` says otherwise: text that people wrote hardly ever
repeats itself more than five times, but a model may do so without end outside its domain."""
Texts = list[str] | tuple[str, ...]


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
    dictionary: Dictionary | None = None
    """What unknown words are looked up in, if `decode.replace_unk` asks for it."""

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
        if decode.replace_unk != "off":
            check_replaceable(self.model, self.target_tokenizer)
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
        if decode.replace_unk != "off":
            tokenizers = self.source_tokenizer, self.target_tokenizer
            results = replace_unknown_words(self.model, tokenizers, lines, results, decode.replace_unk, self.dictionary)
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

    def logprobs(
        self, sources: Sequence[str], targets: Sequence[str], progress: Callable[[int], None] | None = None
    ) -> list[tuple[float, ...]]:
        """The log-probability of each token of given translations, and of the end token behind them."""
        source_ids, target_ids = (
            self.source_tokenizer.encode_batch(sources),
            self.target_tokenizer.encode_batch(targets),
        )
        batch_tokens = self.batch_tokens or batch_tokens_for(self.model)
        end = self.target_tokenizer.eos
        return score_all(self.model, source_ids, target_ids, end, batch_tokens=batch_tokens, progress=progress)

    def score_pairs(self, pairs: Sequence[Pair], decode: DecodeConfig, score: ScoreConfig) -> TranslationScore:
        """Translate the sources of pairs and compare the best outputs with their targets."""
        found = self.translate([pair.source for pair in pairs], decode.only_best())
        outputs, references = [best.text for best, *_ in found], [pair.target for pair in pairs]
        return score_translations(outputs, references, tokenized=score.tokenized, lowercase=score.lowercase)


class Translator(Pipeline):
    """An encoder–decoder, or a language model trained to translate, with its tokenizers: `regard.load("en-tr")`.

    `translator.decode` are its search settings.
    """

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
        self.dictionary: Dictionary | None = None
        """What unknown words are looked up in (`decode.replace_unk`); the run folder's by default."""
        tokenizer = TextTokenizer(loaded.tokenizer, **special)
        shared = loaded.target_tokenizer is loaded.tokenizer
        self.source_tokenizer = source_tokenizer_for(loaded.model, tokenizer)
        self.target_tokenizer = tokenizer if shared else TextTokenizer(loaded.target_tokenizer, **special)

    @classmethod
    def unsupported_reason(cls, loaded: LoadedModel) -> str | None:
        if not isinstance(loaded.model, Seq2SeqModel):
            return "This is not a translator: its model does not generate text."
        if isinstance(loaded.model, CausalLM) and loaded.origin.get("task") != "translation":
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
        ensemble.shortlist, ensemble.dictionary = self.shortlist, self.dictionary
        return ensemble

    @overload
    def translate(self, text: str, *, details: Literal[True], **options: Any) -> TranslatedText: ...
    @overload
    def translate(self, text: Texts, *, details: Literal[True], **options: Any) -> list[TranslatedText]: ...
    @overload
    def translate(self, text: str, *, nbest: int, **options: Any) -> list[str]: ...
    @overload
    def translate(self, text: Texts, *, nbest: int, **options: Any) -> list[list[str]]: ...
    @overload
    def translate(self, text: str, **options: Any) -> str: ...
    @overload
    def translate(self, text: Texts, **options: Any) -> list[str]: ...

    def translate(
        self,
        text: str | Texts,
        *,
        prefix: str = "",
        require: str | Texts = (),
        forbid: str | Texts = (),
        split: bool = True,
        details: bool = False,
        alternatives: int = 0,
        progress: Callable[[int], None] | None = None,
        **options: Any,
    ) -> Any:
        """Translate a text, or a list of texts in batches; the layout of paragraphs is kept.

            translator.translate("See you soon.")
            translator.translate(["See you soon.", "Good morning."], beam_size=8)
            translator.translate("See you soon.", nbest=3)
            translator.translate("See you soon.", temperature=0.8, top_p=0.9, seed=1)
            translator.translate("See you soon.", details=True).sentences

        The translation begins with `prefix`, contains the words in `require` and none of the texts in `forbid`. Texts
        are split into sentences, which are translated one by one; without `split`, each line is translated as it is.
        `options` are fields of `DecodeConfig`, such as `beam_size`, `length_penalty` or `temperature`; all others are
        those of the model's recipe (`translator.decode`).

        The result is the translation, or a list of translations, best first, if `nbest` is given. With `details` it is
        a `TranslatedText` with scores and token probabilities, and with the `alternatives` most probable tokens of each
        step. A list of texts gives a list of results. `progress` is called with the number of finished sentences.
        """
        decode = self.decode.with_options(options, self.translate)
        several = options.get("nbest") is not None
        constraints = None
        if prefix or require or forbid:
            required, forbidden = ([words] if isinstance(words, str) else words for words in (require, forbid))
            tokenizer = self.target_tokenizer
            constraints = make_constraints(tokenizer, prefix=prefix, required=required, forbidden=forbidden)
        found = self.translate_batch(
            [text] if isinstance(text, str) else list(text),
            decode if several else decode.only_best(),
            progress,
            constraints=constraints,
            alternatives=alternatives,
            split=split,
        )
        if details:
            return found[0] if isinstance(text, str) else found
        results = [list(one.texts) if several else one.texts[0] for one in found]
        return results[0] if isinstance(text, str) else results

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
        """What `translate` is built on: with all decoding settings and constraints as objects.

        `seed_offsets` are those of each text's first sentence, for sampling (see `LineTranslator.translate`). Without
        `split`, every line is translated as it is, as one sentence.
        """
        splits = [(text, split_text(text, split)) for text in texts]
        if constraints is not None and (constraints.prefix or constraints.required):
            _check_single_sentences([one for _, one in splits])
        sentences = [sentence for _, one in splits for sentence in one.sentences]
        offsets = None
        if seed_offsets is not None:
            pairs = zip(seed_offsets, splits, strict=True)
            offsets = [first + index for first, (_, one) in pairs for index in range(len(one.sentences))]
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
        return [_translated_text(text, split, [next(found) for _ in split.sentences]) for text, split in splits]

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
        decode = decode or self.decode
        return self._line_translator(len(sentences), decode).translate(
            sentences,
            decode,
            constraints=constraints,
            alternatives=alternatives,
            seed_offsets=seed_offsets,
            progress=progress,
        )

    @overload
    def score(self, source: str, target: str) -> tuple[float, ...]: ...  # type: ignore[overload-overlap]

    @overload
    def score(
        self, source: Sequence[str], target: Sequence[str], *, progress: Callable[[int], None] | None = None
    ) -> list[tuple[float, ...]]: ...

    def score(
        self,
        source: str | Sequence[str],
        target: str | Sequence[str],
        *,
        progress: Callable[[int], None] | None = None,
    ) -> tuple[float, ...] | list[tuple[float, ...]]:
        """How probable a given translation is: the log-probability of each of its tokens, and of the end token.

        Their sum is the log-probability of the translation. Of a list of sources and one of translations, in pairs, it
        is a list. `progress` is called with the number of finished pairs.
        """
        if isinstance(source, str) != isinstance(target, str):
            raise UserError("A source and its translation are two strings, or two lists of strings; give both alike.")
        if isinstance(source, str) and isinstance(target, str):
            return self.score([source], [target])[0]
        if len(source) != len(target):
            raise UserError(f"There are {len(source)} sources and {len(target)} translations; give one for each.")
        model = LineTranslator(self.decoder_model, self.source_tokenizer, self.target_tokenizer)
        return model.logprobs(source, target, progress)

    def _line_translator(self, sentences: int, decode: DecodeConfig) -> LineTranslator:
        """With the decoder that suits this many sentences; an ensemble has only one."""
        alone = self.decoder_model is self.seq2seq_model
        model = self.backend.decoder_model(sentences) if alone else self.decoder_model
        translator = LineTranslator(model, self.source_tokenizer, self.target_tokenizer, self.shortlist)
        if decode.replace_unk != "dictionary":
            return translator
        dictionary = self.dictionary
        return replace(translator, dictionary=find_dictionary(self.loaded.path) if dictionary is None else dictionary)


def translation_search(decode: DecodeConfig) -> DecodeConfig:
    """The settings with the defaults of a translation."""
    return decode if decode.max_repeats is not None else decode.model_copy(update={"max_repeats": MAX_REPEATS})


def split_text(text: str, split: bool = True) -> SplitText:
    """The sentences that a text is translated as; without `split`, its lines, except blank ones."""
    return split_sentences(text, max_characters=MAX_CHARACTERS) if split else split_lines(text)


def _translated_text(source: str, split: SplitText, found: Sequence[Sequence[Translation]]) -> TranslatedText:
    count = max(map(len, found), default=1)
    texts = (split.join([each[min(rank, len(each) - 1)].text for each in found]) for rank in range(count))
    pairs = zip(split.sentences, found, strict=True)
    return TranslatedText(source, tuple(texts), tuple((sentence, tuple(each)) for sentence, each in pairs))


def _check_single_sentences(splits: Sequence[SplitText]) -> None:
    for split in splits:
        if len(split.sentences) > 1:
            raise UserError(
                f"A prefix and required words apply to a single sentence, and this text has {len(split.sentences)}: "
                f"{split.sentences[0]!r} …; translate them one by one."
            )
