"""Looking into a model that writes, of whatever task; the tasks themselves are in `writers.py`.

Their search is watched step by step (`watching.py`). What it found is then read once more as a whole, teacher-forced:
from that pass come the attention over the answer, and each token's probability with its alternatives. Both are the same
numbers to rounding, and a test says so.
"""

import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.attention.context import Watch
from regard.decode import DecodeConfig, Hypothesis, Request, search_batch
from regard.decode.search import precise
from regard.errors import UserError
from regard.look import wire
from regard.look.attentions import Gathered, bytes_of_weights
from regard.look.subject import Hear, Stop, Subject, edited_request
from regard.look.tokens import Speller, TextSpeller
from regard.look.trace import FORMAT, VERSION, Trace, check_size, facts_of_arrays
from regard.look.watching import Watching
from regard.look.wire import BeamNode, DecodingSettings, NodeAttention, RunRequest, TokenEvent
from regard.model import EncoderDecoder, LanguageModel

SHOWN = 8
"""Alternatives of a token that are kept."""
FOLLOWING = 20
"""Next tokens that are shown of a node."""
MODEST = 40
"""Tokens that a language model goes on for, where nothing is asked for."""


@dataclass(frozen=True)
class Source:
    """What a model reads: the ids that its search begins with, and of a parser the words."""

    ids: tuple[int, ...]
    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class Forced:
    """One pass over a whole text."""

    logits: Tensor  # (tokens, vocabulary)
    vectors: Tensor  # (tokens, width), what the decoder gave
    weights: Gathered


class Watched(NamedTuple):
    """All that was seen of one answer."""

    best: Hypothesis
    target: list[int]
    """What it begins with, its tokens, and its end if it came to one."""
    watching: Watching
    forced: Forced


class WriterSubject(Subject):
    """A model that writes, of whatever task."""

    model: EncoderDecoder | LanguageModel
    read_by: TextSpeller
    written_by: Speller
    end: int

    @abstractmethod
    def usual(self) -> DecodeConfig:
        """The search it was made for."""

    @abstractmethod
    def source(self, request: RunRequest) -> Source:
        """What the model reads of a request."""

    @abstractmethod
    def asked(self, source: Source, config: DecodeConfig, longest: int) -> Request:
        """What is searched for."""

    def answer(self, source: Source, tokens: Sequence[int]) -> str:
        """What tokens that were written say."""
        return self.written_by.text(tokens)

    def settings(self) -> DecodingSettings:
        usual = self.usual()
        method: wire.Method = "sample" if usual.sample else "beam" if usual.beams > 1 else "greedy"
        return DecodingSettings(
            method=method,
            beams=max(usual.beams, 1) if method == "beam" else 5,
            longest=MODEST if self.task == "language" else 200,
            temperature=usual.temperature,
            top_k=usual.top_k,
            top_p=usual.top_p,
            seed=usual.seed,
        )

    def trace(
        self,
        request: RunRequest,
        hear: Hear | None = None,
        stop: Stop | None = None,
        dtype: torch.dtype = torch.float16,
    ) -> Trace:
        begun = time.perf_counter()
        source = self.source(request)
        read = self.read_by.tokens(self._shown_source(source))
        if request.source_tokens is not None:
            request = edited_request(request, read, self.read_by.text(source.ids))
        best, target, watching, forced = self.watched(source, request, hear, stop, dtype)
        arrays = {f"attention/{side}": forced.weights.stacked(side) for side in forced.weights.weights}
        arrays |= {f"beam/{side}": watching.stacked(side) for side in watching.rows}
        check_size(sum(array.nbytes for array in arrays.values()))
        first = len(target) - len(best.steps)
        header = wire.Trace(
            format=FORMAT,
            version=VERSION,
            id="",
            model=self.summary(),
            request=request,
            source=read,
            target=(shown := self.written_by.tokens(target)),
            written=self._written(forced.logits, target, shown, first),
            output=self.answer(source, best.tokens),
            labels=[],
            total=best.log_probability,
            nodes=self._nodes(watching, [*best.tokens, *([self.end] if best.ended else [])], shown[:first]),
            arrays=facts_of_arrays(arrays),
            seconds=time.perf_counter() - begun,
        )
        return Trace(header, arrays, self)

    def watched(
        self,
        source: Source,
        request: RunRequest,
        hear: Hear | None = None,
        stop: Stop | None = None,
        dtype: torch.dtype | None = None,
    ) -> Watched:
        """The search for an answer, and the pass over it, attention kept in this precision or as it is."""
        reads = len(self._shown_source(source))
        check_size(bytes_of_weights(self.model, reads, len(self._first(source))))  # before anything is computed
        with self.changed(request):
            watching = Watching(self.model, self.end, dtype, self._heard(source, hear), stop)
            best = self._searched(source, request, watching)
            target = self._target(source, best)
            check_size(bytes_of_weights(self.model, reads, len(target)))
            return Watched(best, target, watching, self._forced(source, target, dtype))

    def forced(self, trace: Trace, watch: Watch) -> None:
        request = trace.header.request
        with self.changed(request):
            self._pass(self.source(request), [token.id for token in trace.header.target], watch)

    def node(self, trace: Trace, number: int) -> NodeAttention:
        header = trace.header
        if not -1 <= number < len(header.nodes):
            raise UserError(f"There is no node {number} in this trace; its {len(header.nodes)} nodes count from 0.")
        path: list[int] = []
        at = number
        while at >= 0:
            path.append(header.nodes[at].token.id)
            at = header.nodes[at].parent
        source = self.source(header.request)
        tokens = [*self._first(source), *reversed(path)]
        if (limit := self._limit) is not None and len(tokens) > limit:
            raise UserError(f"This token stands at position {len(tokens)}, and the model has {limit} positions.")
        with self.changed(header.request):
            forced = self._forced(source, tokens, None)
        logits = precise(forced.logits[-1])
        best = logits.topk(min(FOLLOWING, len(logits)))
        chances = logits.double().softmax(dim=-1)[best.indices]
        shown = {side: forced.weights.stacked(side)[:, :, -1].tolist() for side in forced.weights.weights}
        prefix = self.written_by.tokens(tokens)
        vector: list[float] = forced.vectors[-1].tolist()
        return NodeAttention(
            node=number,
            prefix=prefix,
            decoder=shown.get("decoder", []),
            cross=shown.get("cross", []),
            vector=vector,
            vector_length=len(vector),
            next=[
                wire.NextToken(token=self._behind(token, tokens[-1], _words(prefix)), logit=logit, probability=chance)
                for token, logit, chance in zip(
                    best.indices.tolist(), best.values.tolist(), chances.tolist(), strict=True
                )
            ],
        )

    def whole_pass(self, request: RunRequest) -> Callable[[], Tensor]:
        source = self.source(request)
        target = self._target(source, self._searched(source, request, None))
        return partial(self._pass, source, target[: self._limit], None)

    def _searched(self, source: Source, request: RunRequest, watching: Watching | None) -> Hypothesis:
        config, longest = self._search(request.decoding)
        wanted = self.asked(source, config, longest)
        if (limit := self._limit) is not None:
            room = limit - len(self._first(source)) + 1
            if room < 1:
                raise UserError(f"The text is too long: this model has {limit} positions.")
            wanted = Request(wanted.source, min(wanted.limit, room), wanted.config, wanted.wish)
        ((best, *_),) = search_batch(self.model, [wanted], self.end, watching)
        return best

    def _search(self, asked: wire.SomeDecodingSettings | None) -> tuple[DecodeConfig, int]:
        """The search that is asked for, and how long its output may be."""
        given = {} if asked is None else asked.plain()
        settings = self.settings().model_copy(update=given)
        drawn = {"temperature": settings.temperature, "top_k": settings.top_k, "top_p": settings.top_p}
        changes: dict[str, Any] = {"outputs": None, "groups": 1, "sample": False, "beams": 1}
        if settings.method == "sample":
            changes |= {"sample": True, "seed": settings.seed, **drawn}
        elif settings.method == "beam":
            changes |= {"beams": settings.beams}
        return DecodeConfig.read(self.usual().plain() | changes), settings.longest or self.settings().longest

    def _heard(self, source: Source, hear: Hear | None) -> Callable[[int, list[int], float], None] | None:
        if hear is None:
            return None
        before = self._first(source)

        def heard(step: int, tokens: list[int], gain: float) -> None:
            kept = [token for token in tokens if token != self.end]
            newest = self.written_by.tokens([*before, *tokens])[-1]
            chance = float(torch.tensor(gain, dtype=torch.float64).exp())
            hear(TokenEvent(text=self.written_by.text(kept), token=newest.text, probability=chance, step=step))

        return heard

    @property
    def _limit(self) -> int | None:
        """How many positions there are for what is written."""
        return self.model.input.position.limit

    def _first(self, source: Source) -> list[int]:
        """What stands before the first token that is predicted."""
        if isinstance(self.model, EncoderDecoder):
            return [int(self.model.firsts(1)[0])]
        return list(source.ids)

    def _shown_source(self, source: Source) -> list[int]:
        """What was read, as the model sees it."""
        if isinstance(self.model, EncoderDecoder):
            ids: list[int] = self.model.padded([source.ids])[0][0].tolist()
            return ids
        return list(source.ids)

    def _target(self, source: Source, best: Hypothesis) -> list[int]:
        return [*self._first(source), *best.tokens, *([self.end] if best.ended else [])]

    def _forced(self, source: Source, target: Sequence[int], dtype: torch.dtype | None) -> Forced:
        """A pass over a text whose attention is kept; zeros where the model has no position for its last token."""
        gathered = Gathered(self.model, dtype)
        missing = 0 if self._limit is None else max(0, len(target) - self._limit)
        vectors: list[Tensor] = []
        hook = self.model.decoder.register_forward_hook(lambda module, given, made: vectors.append(made[0]))
        try:
            logits = self._pass(source, target[: len(target) - missing], gathered)
        finally:
            hook.remove()
        for side in ("decoder", "cross"):
            keys = missing if side == "decoder" else 0
            gathered.weights[side] = [
                nn.functional.pad(one, (0, keys, 0, missing)) for one in gathered.weights.get(side, [])
            ]
        gathered.weights = {side: layers for side, layers in gathered.weights.items() if layers}
        return Forced(logits[0].cpu(), vectors[-1].cpu(), gathered)

    @torch.no_grad()
    def _pass(self, source: Source, target: Sequence[int], watch: Watch | None) -> Tensor:
        """Scores for the token after each of a text.  # (1, tokens, vocabulary)"""
        device = self.model.device
        rows = [torch.tensor([list(target)], device=device)]
        if isinstance(self.model, EncoderDecoder):
            rows.insert(0, self.model.padded([source.ids])[0].to(device))
        scores: Tensor = self.model(*rows, watch=watch)
        return scores

    def _written(
        self, logits: Tensor, target: Sequence[int], shown: Sequence[wire.Token], first: int
    ) -> list[wire.Written]:
        """Each token that was predicted, with its probability and what else could have stood there."""
        chances = precise(logits[first - 1 : len(target) - 1]).double().softmax(dim=-1)
        best = chances.topk(min(SHOWN, chances.shape[1]))
        found = []
        for at, (likely, numbers) in enumerate(zip(best.values.tolist(), best.indices.tolist(), strict=True)):
            token, last = shown[first + at], shown[first + at - 1]
            words = _words(shown[: first + at])
            found.append(
                wire.Written(
                    token=token,
                    probability=float(chances[at, token.id]),
                    alternatives=[
                        wire.Alternative(token=self._behind(number, last.id, words), probability=chance)
                        for number, chance in zip(numbers, likely, strict=True)
                    ],
                )
            )
        return found

    def _behind(self, token: int, last: int, words: int) -> wire.Token:
        """A token behind another, where `words` is the number of words up to there."""
        before, shown = self.written_by.tokens([last, token])
        if shown.word < 0:
            return shown
        begins = before.word != shown.word
        return shown.model_copy(update={"word": words if begins else words - 1})

    def _nodes(self, watching: Watching, won: Sequence[int], before: Sequence[wire.Token]) -> list[BeamNode]:
        path = {node.number for node in watching.winner(won)}
        words: dict[int, int] = {-1: _words(before)}
        shown = []
        for node in watching.nodes:
            parent, last = (-1, before[-1].id) if node.parent is None else (node.parent.number, node.parent.token)
            token = self._behind(node.token, last, words[parent])
            words[node.number] = max(words[parent], token.word + 1)
            shown.append(
                BeamNode(
                    id=node.number,
                    parent=parent,
                    step=node.step,
                    token=token,
                    log_probability=node.gain,
                    total=node.total,
                    state=node.state,
                    won=node.number in path,
                    row=node.row,
                    copied=node.copied,
                    attention=node.attention,
                )
            )
        return shown

    def ids(self, request: RunRequest, usual: Sequence[int], frame: tuple[int, int] = (0, 0)) -> list[int]:
        """The ids of a text, or those of its tokens as they were edited; `frame`: special tokens around those shown."""
        if request.source_tokens is None:
            return list(usual)
        given = request.source_tokens[frame[0] : len(request.source_tokens) - frame[1]]
        ids = self.read_by.edited(given, usual)
        wrong = next((number for number in ids if number in self.read_by.hidden), None)
        if wrong is not None:
            raise UserError(f"{self.read_by.piece(wrong)} cannot stand within a text; put a word there.")
        return ids


def _words(tokens: Sequence[wire.Token]) -> int:
    """How many words tokens make up."""
    return 1 + max((token.word for token in tokens), default=-1)
