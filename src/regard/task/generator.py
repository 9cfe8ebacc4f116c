"""A language model ready to write: a prompt in, its continuation out, at once or piece by piece."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from regard.attention.position import LearnedConfig
from regard.data.stream import TextStream
from regard.data.tokenizer import TextTokenizer
from regard.decode import DecodeConfig, Engine, Hypothesis, Request, Wish, search_all
from regard.errors import UserError
from regard.model import LanguageModel
from regard.run import Loaded, find, load
from regard.task.forms import Forms
from regard.task.words import seeded

SAMPLING = DecodeConfig(beams=1, sample=True, temperature=0.8, top_k=50)
"""How a text is continued where nothing else is asked for: likely words, drawn by chance."""
BATCH_TOKENS = {"cpu": 1024, "cuda": 16384}
"""How many prompt tokens are taken at once, padding included."""
_SHOWN = 40
"""Characters of a prompt that a message quotes."""


@dataclass(frozen=True)
class Generated:
    """A continuation of a prompt. `ended` is false where it was cut at the longest length allowed."""

    prompt: str
    text: str
    tokens: tuple[int, ...]
    log_probability: float
    score: float
    ended: bool
    steps: tuple[float, ...]
    alternatives: tuple[tuple[tuple[int, float], ...], ...] = ()


class Generator(Loaded):
    """A language model with its tokenizer."""

    def __init__(self, loaded: Loaded) -> None:
        if not isinstance(loaded.model, LanguageModel):
            raise UserError("This is no language model: it translates. Use `regard translate` with it.")
        if loaded.tokenizer is None:
            raise UserError("This model has no tokenizer, so it can take ids but no text.")
        super().__init__(loaded.model, loaded.tokenizer, place=loaded.place)
        self.language_model = loaded.model
        self.forms = Forms(loaded.model)
        """How it is laid out for the hardware, and in which precision it computes."""
        self.text = TextTokenizer(loaded.tokenizer, **loaded.model.config.tokens.plain())

    def to(self, device: torch.device | str) -> "Generator":
        self.model.to(device)
        self.forms.forget()
        return self

    def generate(
        self, prompt: str, *, limit: int = 200, decode: DecodeConfig = SAMPLING, stops: Sequence[str] = ()
    ) -> str:
        """How the text goes on, in at most `limit` tokens, up to where one of `stops` would come.

        A model with learned positions writes no further than they reach.
        """
        ((best, *_),) = self.generate_all([prompt], limit=limit, decode=decode, stops=stops)
        return best.text

    def stream(
        self, prompt: str, *, limit: int = 200, decode: DecodeConfig = SAMPLING, stops: Sequence[str] = ()
    ) -> Iterator[str]:
        """The same in pieces, as they become certain."""
        if decode.beams > 1:
            raise UserError("Beam search knows its best text only at the end; stream with one beam.")
        request, pieces = self._request(prompt, limit, decode, Wish(), 0), list[str]()
        stream = TextStream(self.text, stops, request.source)
        heard = 0

        def listen(tokens: tuple[int, ...]) -> bool:
            nonlocal heard
            pieces.append(stream.add(tokens[heard:]))
            heard = len(tokens)
            return stream.stopped

        engine = Engine(self.forms.worker(1), self.end, rows=1, longest=limit)
        ticket = engine.submit(request, listen)
        try:
            while engine.work():
                yield from (piece for piece in pieces if piece)
                pieces.clear()
            (best,) = ticket.result(0)
            pieces.append(stream.add(best.tokens[heard:]))
            pieces.append(stream.finish())
            yield from (piece for piece in pieces if piece)
        finally:
            ticket.cancel()

    def generate_all(
        self,
        prompts: Sequence[str],
        *,
        limit: int = 200,
        decode: DecodeConfig = SAMPLING,
        stops: Sequence[str] = (),
        wish: Wish | None = None,
        alternatives: int = 0,
        numbers: Sequence[int] | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> list[list[Generated]]:
        """For each prompt its continuations, best first. `progress` hears how many prompts are done.

        Words are drawn by a prompt's number, from 0 on if there are no `numbers`.
        """
        requests = [
            self._request(prompt, limit, decode, seeded(wish, decode.seed + number), alternatives)
            for number, prompt in zip(range(len(prompts)) if numbers is None else numbers, prompts, strict=True)
        ]
        budget = BATCH_TOKENS.get(self.language_model.device.type, 2048)
        worker = self.forms.worker(len(requests))
        found = search_all(worker, requests, self.end, batch_tokens=budget, progress=progress)
        return [
            [self._generated(prompt, request.source, one, stops) for one in hypotheses]
            for prompt, request, hypotheses in zip(prompts, requests, found, strict=True)
        ]

    @property
    def end(self) -> int:
        """The token that ends a text; none of the vocabulary, where the model has none."""
        end = self.language_model.config.tokens.end
        return -1 if end is None else end

    @property
    def room(self) -> int | None:
        """How many tokens the model can read, prompt and continuation together; None where there is no end to it."""
        position = self.language_model.config.position
        return position.limit if isinstance(position, LearnedConfig) else None

    def prompt(self, ids: Sequence[int]) -> list[int]:
        """What the model reads of a text with these ids: a start before it, where the model has one."""
        special = self.language_model.config.tokens
        if special.start is not None:
            return [special.start, *ids]
        if not ids and special.end is not None:
            return [special.end]  # a text begins where the one before it ended
        return list(ids)

    def _request(self, prompt: str, limit: int, decode: DecodeConfig, wish: Wish, alternatives: int) -> Request:
        ids, room = self.prompt(self.text.encode(prompt)), self.room
        if room is not None and len(ids) > room:
            begin = prompt if len(prompt) <= _SHOWN else f"{prompt[:_SHOWN]}…"
            raise UserError(
                f"The prompt {begin!r} has {len(ids):,} tokens, and this model has positions for {room:,}; shorten it."
            )
        most = limit if room is None else min(limit, room - len(ids) + 1)  # the last one is not read any more
        return Request(tuple(ids), most, decode, wish, alternatives)

    def _generated(self, prompt: str, ids: Sequence[int], one: Hypothesis, stops: Sequence[str]) -> Generated:
        """ids: what the model read of the prompt"""
        stream = TextStream(self.text, stops, ids)
        stream.add(one.tokens)
        stream.finish()
        ended = one.ended or stream.stopped
        return Generated(
            prompt, stream.text, one.tokens, one.log_probability, one.score, ended, one.steps, one.alternatives
        )


def load_generator(name: str | Path, device: torch.device | str = "cpu") -> Generator:
    """A language model from a run folder; computes in float32."""
    place = find(name)
    loaded = load(place)
    try:
        generator = Generator(loaded)
    except UserError as error:
        raise UserError(f"{place}: {error}") from None
    generator.model.float()
    return generator.to(device)
