"""A translator and a text generator that search with CTranslate2; everything around the search is regard's.

Greedy search gives the same outputs. Beam search ranks hypotheses by the model's own length penalty, but CTranslate2
stops its search by its own, which can only be a power of the length. It has no limit on n-grams that repeat in a row:
the default of `max_repeats` has no effect. What else it cannot do is an error, never done differently. It samples with
its own random numbers, so `seed_offsets` have no effect.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from regard.data.tokenizers.streaming import TextStreamer
from regard.decode import Constraints, DecodeConfig, Hypothesis
from regard.errors import UserError
from regard.interop.ctranslate2.engine import GenerationEngine, Output, TranslationEngine, max_text_length
from regard.model import EncoderDecoder
from regard.model.autoregressive import EMPTY_PROMPT
from regard.task.backend import BATCH_TOKENS
from regard.task.language_modeling.pipeline import SAMPLING, GeneratedText, TextGenerator
from regard.task.translation.pipeline import MAX_REPEATS, Translator
from regard.task.translation.result import Translation

_REFERENCE_LENGTH = 20
"""The length at which CTranslate2's length penalty grows as fast as the paper's."""
_MAX_SEARCHES = 50
"""How often a search is repeated because an output contains a forbidden string in yet other tokens."""
Found = TypeVar("Found", Translation, GeneratedText)


class CTranslate2Translator(Translator):
    """A translator from a run folder that searches with CTranslate2.

    With `scored`, each translation has the log-probabilities of its tokens, which takes an extra forward pass.
    """

    def __init__(
        self, translator: Translator, folder: Path | str, device: torch.device | str = "cpu", *, scored: bool = True
    ) -> None:
        if translator.decoder_model is not translator.model:
            raise UserError("CTranslate2 cannot search with an ensemble; leave out --ensemble, or use --engine regard.")
        if not isinstance(translator.seq2seq_model, EncoderDecoder):
            raise UserError("CTranslate2 translates with encoder–decoders only; leave out --engine.")
        super().__init__(translator.loaded, translator.decode)
        self.engine = TranslationEngine(folder, device)
        self.batch_tokens = BATCH_TOKENS[torch.device(device).type]
        self.max_tokens = max_text_length(translator.seq2seq_model.config)
        self.scored = scored

    def ensemble_with(self, others: Sequence[Translator]) -> Translator:
        raise UserError("CTranslate2 cannot search with an ensemble; leave out --ensemble, or use --engine regard.")

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
        decode, constraints = decode or self.decode, constraints or Constraints()
        check_possible(decode, constraints, alternatives)
        return _without_forbidden_text(
            constraints, lambda constraints: self._translate(sentences, decode, progress, constraints)
        )

    def _translate(
        self,
        sentences: Sequence[str],
        decode: DecodeConfig,
        progress: Callable[[int], None] | None,
        constraints: Constraints,
    ) -> list[list[Translation]]:
        sources = self.source_tokenizer.encode_batch(sentences)
        results: list[list[Translation]] = [[Translation("", 0.0, 0.0, (), ended=True)] for _ in sentences]
        indices = [index for index, sentence in enumerate(sentences) if sentence.strip()]
        limits = {number: min(decode.max_length(len(sources[number]) + 1), self.max_tokens) for number in indices}
        for number in indices:
            self._check_length(sentences[number], len(sources[number]), constraints, limits[number])
        groups = list(self._groups({number: len(sources[number]) for number in indices}))
        found = self.engine.search(
            (([sources[number] for number in group], max(limits[number] for number in group)) for group in groups),
            beam_size=decode.beam_size,
            length_penalty=closest_power(decode),
            prefix=constraints.prefix,
            forbidden=constraints.forbidden,
            min_length=decode.min_length,
            **_settings(decode, self.config.vocab_size),
        )
        done = len(sentences) - len(indices)
        for group, outputs in zip(groups, found, strict=True):
            cut = [
                [_cut(output, limits[number]) for output in each] for number, each in zip(group, outputs, strict=True)
            ]
            scored = self.scored or bool(constraints.prefix) or cut != outputs  # their totals leave given tokens out
            steps = iter(self._steps([sources[number] for number in group], cut) if scored else ())
            for number, each in zip(group, cut, strict=True):
                ranked = _ranked(each, [next(steps, None) for _ in each], decode)
                results[number] = self._translations(ranked)
            done += len(group)
            if progress is not None:
                progress(done)
        return results

    def _steps(self, sources: Sequence[Sequence[int]], outputs: Sequence[Sequence[Output]]) -> list[tuple[float, ...]]:
        """The token log-probabilities of every output, in order."""
        flat = [(source, output) for source, each in zip(sources, outputs, strict=True) for output in each]
        scores = self.engine.score([source for source, _ in flat], [output.tokens for _, output in flat])
        return [each[: len(output.tokens) + output.ended] for each, (_, output) in zip(scores, flat, strict=True)]

    def _translations(self, ranked: Sequence[Hypothesis]) -> list[Translation]:
        texts = self.target_tokenizer.decode_batch([one.tokens for one in ranked])
        return [
            Translation(text, one.score, one.logprob, one.tokens, one.ended, one.token_logprobs)
            for text, one in zip(texts, ranked, strict=True)
        ]

    def _groups(self, lengths: dict[int, int]) -> Iterator[list[int]]:
        """Group sentences of similar length into batches of at most `batch_tokens` tokens, the longest first."""
        group: list[int] = []
        for number in sorted(lengths, key=lambda number: -lengths[number]):
            if group and (lengths[group[0]] + 1) * (len(group) + 1) > self.batch_tokens:
                yield group
                group = []
            group.append(number)
        if group:
            yield group

    def _check_length(self, sentence: str, length: int, constraints: Constraints, limit: int) -> None:
        if length >= self.max_tokens:
            raise UserError(
                f"A sentence has {length} tokens and CTranslate2 takes at most {self.max_tokens - 1}: "
                f"{sentence[:40]!r} …; cut it, or use --engine regard."
            )
        if len(constraints.prefix) > limit:
            raise UserError(
                f"The prefix has {len(constraints.prefix)} tokens, and the output may have {limit} at most."
            )


class CTranslate2Generator(TextGenerator):
    """A language model from a run folder that searches with CTranslate2; `scored` as for the translator."""

    def __init__(
        self, generator: TextGenerator, folder: Path | str, device: torch.device | str = "cpu", *, scored: bool = True
    ) -> None:
        super().__init__(generator.loaded)
        self.engine = GenerationEngine(folder, device)
        self.batch_tokens = BATCH_TOKENS[torch.device(device).type]
        self.max_tokens = max_text_length(generator.language_model.config)
        self.scored = scored

    def stream(
        self,
        prompt: str,
        *,
        max_new_tokens: int = 200,
        decode: DecodeConfig = SAMPLING,
        stop: str | Sequence[str] = (),
        **options: Any,
    ) -> Iterator[str]:
        decode = decode.with_options(options, self.stream)
        stop = [stop] if isinstance(stop, str) else stop
        if decode.beam_size > 1:
            raise UserError("Beam search knows its best text only at the end; stream with a beam size of 1.")
        check_possible(decode, Constraints())
        ids = self._checked_prompt(prompt, max_new_tokens)
        stream = TextStreamer(self.tokenizer, stop, ids)
        settings = _settings(decode, self.config.vocab_size) | {"min_length": decode.min_length}
        tokens = self.engine.stream(ids, max_new_tokens, **settings)
        for token in tokens:
            if piece := stream.add([token]):
                yield piece
            if stream.stopped:
                return
        if piece := stream.finish():
            yield piece

    def generate_batch(
        self,
        prompts: Sequence[str],
        *,
        max_new_tokens: int = 200,
        decode: DecodeConfig = SAMPLING,
        stop: Sequence[str] = (),
        constraints: Constraints | None = None,
        alternatives: int = 0,
        seed_offsets: Sequence[int] | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> list[list[GeneratedText]]:
        constraints = constraints or Constraints()
        check_possible(decode, constraints, alternatives)
        if constraints.prefix:
            raise UserError("CTranslate2 takes no prefix of a continuation; put it at the end of the prompt.")
        return _without_forbidden_text(
            constraints,
            lambda constraints: self._generate(prompts, max_new_tokens, decode, stop, constraints, progress),
        )

    def _generate(
        self,
        prompts: Sequence[str],
        max_new_tokens: int,
        decode: DecodeConfig,
        stop: Sequence[str],
        constraints: Constraints,
        progress: Callable[[int], None] | None,
    ) -> list[list[GeneratedText]]:
        ids = [self._checked_prompt(prompt, max_new_tokens) for prompt in prompts]
        groups = list(self._groups(ids))
        found = self.engine.search(
            ([ids[number] for number in group] for group in groups),
            max_new_tokens,
            beam_size=decode.beam_size,
            length_penalty=closest_power(decode),
            forbidden=constraints.forbidden,
            min_length=decode.min_length,
            **_settings(decode, self.config.vocab_size),
        )
        results: list[list[GeneratedText]] = [[] for _ in prompts]
        done = 0
        for group, outputs in zip(groups, found, strict=True):
            for number, each in zip(group, outputs, strict=True):
                steps = self.engine.score([ids[number]] * len(each), each) if self.scored else [None] * len(each)
                ranked = _ranked(each, steps, decode)
                results[number] = [self._generated(prompts[number], ids[number], one, stop) for one in ranked]
            done += len(group)
            if progress is not None:
                progress(done)
        return results

    def _checked_prompt(self, prompt: str, max_new_tokens: int) -> list[int]:
        ids = self.prompt_ids(self.tokenizer.encode(prompt))
        if not ids:
            raise UserError(EMPTY_PROMPT)
        if len(ids) + max_new_tokens > self.max_tokens:
            raise UserError(
                f"The prompt has {len(ids)} tokens, and with {max_new_tokens} new ones it exceeds the "
                f"{self.max_tokens} positions of CTranslate2; lower --max-new-tokens, or use --engine regard."
            )
        return ids

    def _groups(self, ids: Sequence[Sequence[int]]) -> Iterator[list[int]]:
        """Group prompts of equal length: of unequal ones, CTranslate2 would decode the excess token by token."""
        lengths: dict[int, list[int]] = {}
        for number, each in enumerate(ids):
            lengths.setdefault(len(each), []).append(number)
        for length, numbers in sorted(lengths.items(), reverse=True):
            size = max(1, self.batch_tokens // length)
            yield from (numbers[first : first + size] for first in range(0, len(numbers), size))


def check_possible(decode: DecodeConfig, constraints: Constraints, alternatives: int = 0) -> None:
    """Raise an error for what CTranslate2 cannot do, or would do differently."""
    for requested, what in (
        (bool(constraints.required), "require words in the output"),
        (decode.beam_groups > 1, "search in beam groups"),
        (decode.coverage_penalty > 0, "apply GNMT's coverage penalty"),
        (decode.replace_unk != "off", "replace unknown words"),
        (alternatives > 0, "report alternatives of each token"),
        (decode.sample and decode.min_p > 0, "sample with --min-p"),
        (decode.sample and decode.repetition_penalty != 1.0, "apply regard's repetition penalty"),
        (decode.sample and decode.seed != 0, "sample with a seed"),
        ((decode.max_repeats or 0) not in (0, MAX_REPEATS), "limit how often an n-gram repeats in a row"),
    ):
        if requested:
            raise UserError(f"CTranslate2 cannot {what}; leave that out, or use --engine regard.")
    for sequence in constraints.forbidden:
        if any(constraints.prefix[at : at + len(sequence)] == sequence for at in range(len(constraints.prefix))):
            raise UserError("A forbidden sequence is part of the prefix; leave out one of the two.")


def _without_forbidden_text(
    constraints: Constraints, search: Callable[[Constraints], list[list[Found]]]
) -> list[list[Found]]:
    """The results of a search without the forbidden strings. CTranslate2 excludes token sequences only.

    So every sequence that an output contains a string with is excluded from the next search, until there is none.
    """
    text = constraints.forbidden_text
    if text is None:
        return search(constraints)
    excluded = dict.fromkeys(constraints.forbidden)
    for _ in range(_MAX_SEARCHES):
        results = search(replace(constraints, forbidden=tuple(excluded), forbidden_text=None))
        found = {text.first_in(one.tokens) for each in results for one in each} - {None}
        if not found:
            return results
        excluded |= dict.fromkeys(sequence for sequence in found if sequence is not None)
    raise UserError(
        f"After {_MAX_SEARCHES} searches, CTranslate2 still writes a forbidden word in a new way; forbid less, or use "
        "--engine regard."
    )


def closest_power(decode: DecodeConfig) -> float:
    """The power of the length that CTranslate2 is to divide by.

    The GNMT penalty grows like the power alpha · length / (5 + length), which is taken at one usual length.
    """
    penalty = decode.length_penalty
    if decode.beam_size == 1 or penalty.kind == "none":
        return 0.0
    return penalty.alpha * (_REFERENCE_LENGTH / (5 + _REFERENCE_LENGTH) if penalty.kind == "gnmt" else 1.0)


def differs(decode: DecodeConfig) -> str | None:
    """A sentence about how its search differs from regard's; None if it does not."""
    if decode.beam_size == 1 or decode.length_penalty.kind != "gnmt" or decode.length_penalty.alpha == 0:
        return None
    return (
        f"CTranslate2 stops its search by length^{closest_power(decode):.2f}, the closest it has to this model's "
        "length penalty (GNMT's); what it finds is ranked by the model's own."
    )


def _ranked(
    outputs: Sequence[Output], steps: Sequence[tuple[float, ...] | None], decode: DecodeConfig
) -> list[Hypothesis]:
    """Outputs best first by the model's own length penalty, with their token log-probabilities if known."""
    found = []
    for output, each in zip(outputs, steps, strict=True):
        total = output.logprob if each is None else sum(each)
        divisor = 1.0 if decode.beam_size == 1 else decode.length_penalty.at(max(len(output.tokens) + output.ended, 1))
        found.append(Hypothesis(output.tokens, total, total / divisor, output.ended, each or ()))
    return sorted(found, key=lambda one: -one.score)


def _settings(decode: DecodeConfig, vocab_size: int) -> dict[str, float]:
    """Repetition and sampling, by the names of CTranslate2's options."""
    repetition: dict[str, float] = {"no_repeat_ngram_size": decode.no_repeat_ngram_size}
    if not decode.sample or decode.temperature == 0:
        return repetition
    return repetition | {
        "sampling_topk": min(decode.top_k, vocab_size),
        "sampling_topp": decode.top_p,
        "sampling_temperature": decode.temperature,
    }


def _cut(output: Output, limit: int) -> Output:
    """Truncate an output that is longer than its own limit, because another in its batch was allowed to be."""
    if len(output.tokens) + output.ended <= limit:
        return output
    return Output(output.tokens[:limit], False, output.logprob)
