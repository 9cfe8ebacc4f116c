"""Tracing a model that generates token by token, of any task; `tasks.py` has what single tasks do differently.

The search is recorded step by step (`analysis/search_recorder.py`). A teacher-forced pass over its output then gives
the attention over the complete output, and each token's probability and alternatives. Both give the same numbers up to
rounding, which a test checks.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.attention.context import AttentionHook
from regard.data.tokenizers.tokenizer import TextTokenizer
from regard.decode import DecodeConfig, Hypothesis, Observer, Request, search_batch
from regard.errors import UserError
from regard.look import schema
from regard.look.analysis.attention_maps import AttentionRecorder, attention_nbytes
from regard.look.analysis.hidden_states import record_hidden_states
from regard.look.analysis.search_recorder import OnStep, SearchRecorder, StopObserver
from regard.look.models.detokenizer import Detokenizer, TextDetokenizer
from regard.look.models.search_tree import beam_nodes, generated_tokens, length_penalty, next_tokens, ranked_hypotheses
from regard.look.models.traced_model import (
    IGNORE,
    Example,
    OnToken,
    ShouldStop,
    TextExample,
    TracedModel,
    check_logits,
    edited_request,
)
from regard.look.models.what_if import constrained
from regard.look.schema import DecodingSettings, NodeAttention, RunRequest, Token, TokenEvent
from regard.look.trace import FORMAT, VERSION, Trace, array_specs, check_size
from regard.model import CausalLM, Seq2SeqLM
from regard.model.autoregressive import EMPTY_PROMPT
from regard.task.pipeline import Pipeline

MAX_EXAMPLE_LENGTH = 256
"""Tokens of a dev-set example; longer texts are truncated, longer pairs are left out."""


@dataclass(frozen=True)
class Source:
    """The input of a search: its ids, and the words for a task that needs them."""

    ids: tuple[int, ...]
    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class ForcedPass:
    """A teacher-forced pass over an output."""

    logits: Tensor  # (tokens, vocab_size)
    hidden_states: Tensor  # (tokens, width); (tokens, 0) if the model has none
    attention: AttentionRecorder


class RecordedRun(NamedTuple):
    """A search with the teacher-forced pass over its best hypothesis."""

    search: Request
    found: list[Hypothesis]
    """The hypotheses that the search found, best first."""
    target: list[int]
    """The decoder's input: bos or the prompt, the generated tokens, and eos if it was generated."""
    recorder: SearchRecorder
    forced: ForcedPass

    @property
    def best(self) -> Hypothesis:
        return self.found[0]


class TracedAutoregressiveModel(TracedModel):
    """An encoder–decoder or a language model that turns text into text.

    The pipeline provides the tokenizers and, in an attribute `decode`, its decoding settings. A pipeline whose input
    or output is not plain text defines `encode_input(text)` (token ids of an input) and `decode_output(ids)` (text of
    an output).
    """

    task = "generation"
    generates = True
    default_max_new_tokens = 200
    continues_prompt = False
    """Whether the output is the rest of the input's text."""

    model: Seq2SeqLM | CausalLM
    source_tokenizer: TextTokenizer
    target_tokenizer: TextTokenizer
    target_detokenizer: Detokenizer

    def __init__(self, pipeline: Pipeline, name: str) -> None:
        super().__init__(name)
        self.pipeline, self.model = pipeline, pipeline.model
        if pipeline.loaded.tokenizer is None or pipeline.loaded.target_tokenizer is None:
            raise UserError(f"{name} cannot be traced: it has no tokenizer.")
        special = self.model.config.special_tokens.plain()
        self.source_tokenizer = TextTokenizer(pipeline.loaded.tokenizer, **special)
        self.target_tokenizer = TextTokenizer(pipeline.loaded.target_tokenizer, **special)
        self.source_detokenizer = TextDetokenizer(self.source_tokenizer)
        self.target_detokenizer = TextDetokenizer(self.target_tokenizer)
        eos = self.model.config.special_tokens.eos
        self.eos = -1 if eos is None else eos

    def default_decode(self) -> DecodeConfig:
        """The pipeline's own decoding settings."""
        decode = getattr(self.pipeline, "decode", None)
        return decode if isinstance(decode, DecodeConfig) else DecodeConfig()

    def encode_text(self, text: str) -> list[int]:
        """The token ids of an input text, without bos and eos."""
        encode = getattr(self.pipeline, "encode_input", self.source_tokenizer.encode)
        return list(encode(text))

    def encode_request(self, request: RunRequest) -> Source:
        """The model's input for a request."""
        ids = self.encode_text(request.text)
        if isinstance(self.model, Seq2SeqLM):
            ids = self.source_detokenizer.edited_ids(request.source_tokens, ids, (0, 1))
            if not ids:
                raise UserError("The input is empty; enter a text.")
            return Source(tuple(ids))
        frame = (len(self.prompt(ids)) - len(ids), 0)
        prompt = self.prompt(self.source_detokenizer.edited_ids(request.source_tokens, ids, frame))
        if not prompt:
            raise UserError(EMPTY_PROMPT)
        return Source(tuple(prompt))

    def prompt(self, ids: Sequence[int]) -> list[int]:
        """A language model's prompt: its text after bos, if the model has one."""
        bos = self.model.config.special_tokens.bos
        return list(ids) if bos is None else [bos, *ids]

    def search_request(self, source: Source, config: DecodeConfig, max_new_tokens: int) -> Request:
        """The request for the decoder."""
        if isinstance(self.model, Seq2SeqLM):
            max_new_tokens = min(config.max_length(len(source.ids) + 1), max_new_tokens)
        return Request(source.ids, max_new_tokens, config)

    def source_tokens(self, source: Source) -> list[Token]:
        """The tokens of the input, with the special tokens that the model adds."""
        return self.source_detokenizer.tokens(self._source_ids(source))

    def output_text(self, source: Source, ids: Sequence[int]) -> str:
        """The text of generated tokens."""
        decode = getattr(self.pipeline, "decode_output", self.target_detokenizer.text)
        return str(decode(ids))

    def decoding_settings(self) -> DecodingSettings:
        decode = self.default_decode()
        method: schema.Method = "sample" if decode.sample else "beam" if decode.beam_size > 1 else "greedy"
        return DecodingSettings(
            method=method,
            beam_size=max(decode.beam_size, 1) if method == "beam" else 5,
            max_new_tokens=self.default_max_new_tokens,
            temperature=decode.temperature,
            top_k=decode.top_k,
            top_p=decode.top_p,
            seed=decode.seed,
        )

    def trace(
        self,
        request: RunRequest,
        on_token: OnToken | None = None,
        should_stop: ShouldStop | None = None,
        dtype: torch.dtype = torch.float16,
    ) -> Trace:
        start = time.perf_counter()
        source = self.encode_request(request)
        source_tokens = self.source_tokens(source)
        if request.source_tokens is not None:
            request = edited_request(request, source_tokens, self.source_detokenizer.text(source.ids))
        run = self.record(source, request, on_token, should_stop, dtype)
        best, target, recorder, forced = run.best, run.target, run.recorder, run.forced
        arrays = {f"attention/{name}": forced.attention.stacked(name) for name in forced.attention.weights}
        arrays |= {f"beam/{name}": recorder.stacked(name) for name in recorder.rows}
        check_size(sum(array.nbytes for array in arrays.values()))
        first, penalty = len(target) - len(best.token_logprobs), length_penalty(run.search)
        target_tokens = self.target_detokenizer.tokens(target)
        header = schema.Trace(
            format=FORMAT,
            version=VERSION,
            id="",
            model=self.summary(),
            request=request,
            source=source_tokens,
            target=target_tokens,
            generated=generated_tokens(self.target_detokenizer, forced.logits, target_tokens, first),
            output=self.output_text(source, best.tokens),
            predictions=[],
            log_probability=best.logprob,
            nodes=beam_nodes(self.target_detokenizer, recorder, self._with_eos(best), target_tokens[:first]),
            hypotheses=ranked_hypotheses(recorder, run.found, run.search, partial(self.output_text, source)),
            length_penalty=None if penalty is None else schema.LengthPenalty(**penalty.plain()),
            cuts=None if best.ended else [self._describe_cut(source, request, run)],
            arrays=array_specs(arrays),
            seconds=time.perf_counter() - start,
        )
        return Trace(header, arrays, self)

    def record(
        self,
        source: Source,
        request: RunRequest,
        on_token: OnToken | None = None,
        should_stop: ShouldStop | None = None,
        dtype: torch.dtype | None = None,
    ) -> RecordedRun:
        """Search, then run the teacher-forced pass; attention is recorded in `dtype` or the model's own."""
        source_length = len(self._source_ids(source))
        check_size(attention_nbytes(self.model, source_length, len(self._prefix(source))))  # before any computation
        with self.ablated(request, should_stop):
            recorder = SearchRecorder(
                self.model, self.eos, dtype, self._on_step(source, on_token), should_stop, source_length
            )
            search, found = self._search(source, request, recorder)
            target = [*self._prefix(source), *self._with_eos(found[0])]
            check_size(attention_nbytes(self.model, source_length, len(target)))
            return RecordedRun(search, found, target, recorder, self._forced_pass(source, target, dtype))

    def logits(self, request: RunRequest, target: Sequence[int]) -> Tensor:
        """The logits after each token of a target, with a request's input and no ablation.  # (tokens, vocab_size)"""
        logits = self._forward(self.encode_request(request), target, None)
        check_logits(logits)
        return logits[0].cpu()

    def prefix_length(self, request: RunRequest) -> int:
        """How many tokens the decoder has read before the first generated one: bos, or the prompt."""
        return len(self._prefix(self.encode_request(request)))

    def forward_trace(self, trace: Trace, attention_hook: AttentionHook) -> None:
        request = trace.header.request
        with self.ablated(request):
            self._forward(self.encode_request(request), [token.id for token in trace.header.target], attention_hook)

    def observed_pass(self, trace: Trace, observer: AbstractContextManager[object]) -> None:
        """A last token beyond the model's positions is left out."""
        request = trace.header.request
        source, target = self.encode_request(request), [token.id for token in trace.header.target]
        with self.ablated(request), observer:
            self._forward(source, target[: self._max_positions], None)

    def node(self, trace: Trace, node_id: int) -> NodeAttention:
        header = trace.header
        if not -1 <= node_id < len(header.nodes):
            raise UserError(f"This trace has no node {node_id}; its {len(header.nodes)} nodes are counted from 0.")
        path: list[int] = []
        current = node_id
        while current >= 0:
            path.append(header.nodes[current].token.id)
            current = header.nodes[current].parent
        source = self.encode_request(header.request)
        ids = [*self._prefix(source), *reversed(path)]
        if (limit := self._max_positions) is not None and len(ids) > limit:
            raise UserError(f"This token is at position {len(ids)}, but the model has {limit} positions.")
        with self.ablated(header.request):
            forced = self._forced_pass(source, ids, None)
        rows = {name: forced.attention.stacked(name)[:, :, -1].tolist() for name in forced.attention.weights}
        prefix = self.target_detokenizer.tokens(ids)
        hidden_state: list[float] = forced.hidden_states[-1].tolist()
        return NodeAttention(
            node=node_id,
            prefix=prefix,
            decoder=rows.get("decoder", []),
            cross=rows.get("cross", []),
            hidden_state=hidden_state,
            hidden_size=len(hidden_state),
            next_tokens=next_tokens(self.target_detokenizer, forced.logits[-1], prefix),
        )

    def unablated_pass(self, request: RunRequest, should_stop: ShouldStop | None = None) -> Callable[[], Tensor]:
        source = self.encode_request(request)
        observer = None if should_stop is None else StopObserver(should_stop)
        _, (best, *_) = self._search(source, request, observer)
        target = [*self._prefix(source), *self._with_eos(best)]
        return partial(self._forward, source, target[: self._max_positions], None)

    def make_example(self, item: Any) -> Example | None:
        if isinstance(self.model, Seq2SeqLM):
            source, _, target = item.partition("\t")
            return self.pair_example(self.encode_text(source), self.target_tokenizer.encode(target))
        prompt = self.prompt(self.encode_text(item))[:MAX_EXAMPLE_LENGTH]
        return None if len(prompt) < 2 else Example(torch.tensor(prompt[:-1]), torch.tensor(prompt[1:]))

    def pair_example(self, source: Sequence[int], target: Sequence[int]) -> Example | None:
        """The example of a source and target; None if one is empty or too long."""
        if not source or not target or max(len(source), len(target)) > MAX_EXAMPLE_LENGTH:
            return None
        if isinstance(self.model, Seq2SeqLM):
            bos = int(self.model.first_tokens(1)[0])
            return Example(torch.tensor([bos, *target]), torch.tensor([*target, self.eos]), tuple(source))
        labels = [*[IGNORE] * (len(source) - 1), *target, self.eos]  # one sequence: the source is a prompt
        return Example(torch.tensor([*source, *target]), torch.tensor(labels))

    def example_tokens(self, example: Example) -> tuple[list[Token], list[Token]]:
        source = (
            [] if example.source is None else self.source_detokenizer.tokens(self._source_ids(Source(example.source)))
        )
        return source, self.target_detokenizer.tokens([*example.inputs.tolist(), int(example.labels[-1])])

    def text_example(self, text: str) -> TextExample | None:
        if not isinstance(self.model, Seq2SeqLM) or hasattr(self.pipeline, "encode_input"):
            return None
        ids, spans = self.source_tokenizer.encode_with_offsets(text)
        example = self.pair_example(ids, [self.eos])
        if example is None:
            return None
        special = len(self._source_ids(Source(tuple(ids)))) - len(ids)
        return TextExample(example, [*spans, *[None] * special])

    @property
    def _max_positions(self) -> int | None:
        """The number of positions of the decoder; None if it is unlimited."""
        return self.model.max_positions

    def _prefix(self, source: Source) -> list[int]:
        """The decoder's input before the first generated token: bos, or the prompt."""
        if isinstance(self.model, Seq2SeqLM):
            return [int(self.model.first_tokens(1)[0])]
        return list(source.ids)

    def _source_ids(self, source: Source) -> list[int]:
        """The source as the model reads it, with the special tokens that the model adds."""
        if isinstance(self.model, Seq2SeqLM):
            ids: list[int] = self.model.pad_sources([source.ids])[0][0].tolist()
            return ids
        return list(source.ids)

    def _with_eos(self, best: Hypothesis) -> list[int]:
        return [*best.tokens, *([self.eos] if best.ended else [])]

    def _search(
        self, source: Source, request: RunRequest, observer: Observer | None
    ) -> tuple[Request, list[Hypothesis]]:
        """The search for a request, and the hypotheses that it finds, best first."""
        config, max_new_tokens = self._search_settings(request.decoding)
        search = self.search_request(source, config, max_new_tokens)
        if (limit := self._max_positions) is not None:
            room = limit - len(self._prefix(source)) + 1
            if room < 1:
                raise UserError(f"The text is too long: this model has {limit} positions.")
            search = replace(search, max_length=min(search.max_length, room))
        vocab_size = self.model.config.vocab_size
        search = constrained(
            search, request, self.target_tokenizer, vocab_size, self.eos, continues=self.continues_prompt
        )
        (found,) = search_batch(self.model, [search], self.eos, observer)
        return search, found

    def _describe_cut(self, source: Source, request: RunRequest, run: RecordedRun) -> str:
        """Why the output ended without an end token, in a sentence."""
        length, prefix = len(run.best.tokens), len(self._prefix(source))
        limit, (_, max_new_tokens) = self._max_positions, self._search_settings(request.decoding)
        if limit is not None and prefix + length > limit:
            reason = f"the model has {limit:,} positions"
        elif length >= max_new_tokens:
            reason = "that is the maximum number of new tokens"
        else:
            reason = f"an input of {len(source.ids):,} tokens gets no longer output"
        return f"The output was cut after {length:,} tokens, before an end token: {reason}."

    def _search_settings(self, overrides: schema.DecodingOverrides | None) -> tuple[DecodeConfig, int]:
        """The decode config of a request, and its maximum number of new tokens."""
        defaults = self.decoding_settings()
        settings = defaults.model_copy(update={} if overrides is None else overrides.to_dict())
        changes: dict[str, Any] = {"nbest": None, "beam_groups": 1, "sample": False, "beam_size": 1}
        if settings.method == "sample":
            sampling = {"temperature": settings.temperature, "top_k": settings.top_k, "top_p": settings.top_p}
            changes |= {"sample": True, "seed": settings.seed, **sampling}
        elif settings.method == "beam":
            changes |= {"beam_size": settings.beam_size}
        config = DecodeConfig.read(self.default_decode().plain() | changes)
        return config, settings.max_new_tokens or defaults.max_new_tokens

    def _on_step(self, source: Source, on_token: OnToken | None) -> OnStep | None:
        """The recorder's callback that reports each new token of the best hypothesis."""
        if on_token is None:
            return None
        prefix = self._prefix(source)

        def report(step: int, ids: list[int], log_probability: float) -> None:
            text = self.target_detokenizer.text([token_id for token_id in ids if token_id != self.eos])
            newest = self.target_detokenizer.tokens([*prefix, *ids])[-1]
            probability = float(torch.tensor(log_probability, dtype=torch.float64).exp())
            on_token(TokenEvent(text=text, token=newest.text, probability=probability, step=step))

        return report

    def _forced_pass(self, source: Source, target: Sequence[int], dtype: torch.dtype | None) -> ForcedPass:
        """A pass over `target` that records attention; zeros for a last token beyond the model's positions."""
        recorder = AttentionRecorder(self.model, dtype, len(self._source_ids(source)))
        missing = 0 if self._max_positions is None else max(0, len(target) - self._max_positions)
        with record_hidden_states(self.model) as hidden_states:
            logits = self._forward(source, target[: len(target) - missing], recorder)
        if missing:
            for name in recorder.weights.keys() & {"decoder", "cross"}:
                keys = missing if name == "decoder" else 0
                recorder.weights[name] = [
                    nn.functional.pad(weights, (0, keys, 0, missing)) for weights in recorder.weights[name]
                ]
        check_logits(logits)
        return ForcedPass(logits[0].cpu(), hidden_states.of(logits)[0].cpu(), recorder)

    @torch.no_grad()
    def _forward(self, source: Source, target: Sequence[int], attention_hook: AttentionHook | None) -> Tensor:
        """The logits for the token after each position.  # (1, tokens, vocab_size)"""
        device = self.model.device
        inputs = [torch.tensor([list(target)], device=device)]
        if isinstance(self.model, Seq2SeqLM):
            inputs.insert(0, self.model.pad_sources([source.ids])[0].to(device))
        logits: Tensor = self.model(*inputs, attention_hook=attention_hook)
        return logits


def require_generator(traced_model: TracedModel) -> TracedAutoregressiveModel:
    """The traced model, or an error if it does not generate token by token."""
    if not isinstance(traced_model, TracedAutoregressiveModel):
        raise UserError(f"{traced_model.name} predicts labels; only a model that writes tokens chooses between them.")
    return traced_model
