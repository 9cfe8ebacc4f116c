"""The outputs of a request in pieces, as they are decoded: what streams send at once, and other answers join.

So a stream and the answer at once are the same text, made by the same code. A language model samples; a translator
searches, and gives each translation in one piece.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from regard.data.tokenizers.streaming import TextStreamer
from regard.data.tokenizers.tokenizer import TextTokenizer
from regard.decode import Hypothesis
from regard.errors import UserError
from regard.serve.api.openai.options import OutputOptions
from regard.serve.api.openai.token_texts import TokenLogprob, TokenTexts
from regard.task.language_modeling.pipeline import TextGenerator
from regard.task.translation.pipeline import Translator

FinishReason = Literal["stop", "length"]


class Piece(NamedTuple):
    """A piece of an output. The last one of each output says why it ended."""

    number: int
    text: str
    tokens: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    output_tokens: int = 0
    """Of the whole output, in its last piece."""
    prompt_tokens: int = 0
    """Of its prompt, in the last piece of the prompt's first output."""


@dataclass(frozen=True)
class Prompt:
    """What the model reads."""

    ids: tuple[int, ...]
    text: str | None = None
    """For errors."""


def generated_pieces(
    generator: TextGenerator, prompts: Sequence[Prompt], options: OutputOptions, ends: frozenset[int] = frozenset()
) -> Iterator[Piece]:
    """The pieces of `options.n` continuations of each prompt. Those of `ends` end an output, besides the end token."""
    repeated = [prompt for prompt in prompts for _ in range(options.n)]
    requests = [
        generator.request(
            prompt.ids,
            options.new_tokens,
            options.search,
            options.constraints(number),
            options.logprobs or 0,
            prompt.text,
        )
        for number, prompt in enumerate(repeated)
    ]
    if not all(prompt.ids for prompt in prompts):
        raise UserError("prompt: it is empty, and this model has no token that begins a text; give a prompt.")
    outputs = [_Output(number, generator.tokenizer, each.ids, options, ends) for number, each in enumerate(repeated)]
    decoder: Any = generator.backend.decoder_model(len(requests))
    streams = decoder.stream_all(requests, generator.end_id, logprobs=options.logprobs is not None)
    with closing(iter(streams)) as states:
        for number, hypothesis, done in states:
            piece = outputs[number].advance(hypothesis, done)
            if piece.finish_reason is not None and not done:
                streams.stop(number)
            if piece.text or piece.tokens or piece.finish_reason is not None:
                yield piece


def translated_pieces(translator: Translator, texts: Sequence[str], options: OutputOptions) -> Iterator[Piece]:
    """The `options.n` best translations of each text, found by the search of the translator's recipe.

    A translation is as long as it has to be; `max_tokens` only cuts what is longer.
    """
    if options.logprobs is not None:
        raise UserError("logprobs: a translator does not tell them here; use /v1/translate with details.")
    decode = translator.decode.only_best()
    if options.n > 1:
        decode = translator.decode.with_options({"nbest": options.n})
    found = translator.translate_batch(texts, decode)
    lengths = [len(ids) for ids in translator.source_tokenizer.encode_batch(texts)]
    for index, translated in enumerate(found):
        for rank in range(options.n):
            text = translated.texts[min(rank, len(translated.texts) - 1)]
            text, length, reason = _cut(translator.target_tokenizer, text, options)
            yield Piece(index * options.n + rank, text, (), reason, length, 0 if rank else lengths[index])


def _cut(tokenizer: TextTokenizer, text: str, options: OutputOptions) -> tuple[str, int, FinishReason]:
    """A translation up to a stop string and its maximum length, its tokens, and why it ends."""
    starts = [start for stop in options.stops if (start := text.find(stop)) >= 0]
    text = text[: min(starts)] if starts else text
    ids = tokenizer.encode(text)
    if options.max_tokens is not None and len(ids) > options.max_tokens:
        return tokenizer.decode(ids[: options.max_tokens]), options.max_tokens, "length"
    return text, len(ids), "stop"


@dataclass
class _Output:
    """An output that is being decoded."""

    number: int
    tokenizer: TextTokenizer
    prompt: tuple[int, ...]
    options: OutputOptions
    ends: frozenset[int]
    _received: int = 0
    """Tokens received so far."""
    _streamer: TextStreamer = field(init=False)
    _tokens: TokenTexts | None = None

    def __post_init__(self) -> None:
        self._streamer = TextStreamer(self.tokenizer, self.options.stops, self.prompt)
        if self.options.logprobs is not None:
            self._tokens = TokenTexts(self.tokenizer, self.prompt)

    def advance(self, hypothesis: Hypothesis, done: bool) -> Piece:
        """What is certain of the text now, and was not before."""
        text, ended = "", hypothesis.ended
        for token in hypothesis.tokens[self._received :]:
            if token in self.ends:
                done = ended = True
                break
            if self._tokens is not None:
                self._tokens.add(token, hypothesis, self._received)
            self._received += 1
            text += self._streamer.add([token])
            if self._streamer.stopped:
                break
        if done and not self._streamer.stopped:
            text += self._streamer.finish()
        stopped = self._streamer.stopped
        tokens: tuple[TokenLogprob, ...] = ()
        if self._tokens is not None:
            all_of_them = done and not stopped
            tokens = self._tokens.take(None if all_of_them else len(self._streamer.text))
        if not (done or stopped):
            return Piece(self.number, text, tokens)
        prompt_tokens = 0 if self.number % self.options.n else len(self.prompt)
        return Piece(self.number, text, tokens, "stop" if ended or stopped else "length", self._received, prompt_tokens)
