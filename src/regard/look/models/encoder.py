"""Tracing a model that reads its input in a single pass: an encoder of texts (here) or of images (`images.py`).

The attention of that pass is the trace; the model's answers are its predictions.
"""

import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from regard.attention.context import AttentionHook
from regard.data.tokenizers.tokenizer import TextTokenizer
from regard.errors import UserError
from regard.look import schema
from regard.look.analysis.attention_maps import AttentionRecorder, attention_nbytes
from regard.look.models.detokenizer import TextDetokenizer
from regard.look.models.traced_model import (
    Example,
    OnToken,
    ShouldStop,
    TextExample,
    TracedModel,
    check_logits,
    edited_request,
)
from regard.look.schema import Choice, DecodingSettings, NodeAttention, PatchGrid, Prediction, RunRequest, Token
from regard.look.trace import FORMAT, VERSION, Trace, array_specs, check_size
from regard.model import Encoder, VisionTransformer
from regard.task.pipeline import Pipeline
from regard.task.text_encoder import encoder_tokenizer, surrounding_tokens

MAX_TEXT_TOKENS = 256
"""Tokens of a dev-set example; longer texts are truncated."""
MAX_PREDICTIONS = 5
"""Labels or fillers that are shown of each item."""


@dataclass
class EncoderInput:
    """The input tensor, and what else is known about it."""

    tensor: Tensor  # (1, tokens), or pixels (1, channels, height, width)
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class EncoderOutput:
    """The input's tokens and the model's answer."""

    tokens: list[Token]
    output: str
    predictions: list[Prediction]
    text: str = ""
    """The input as text, for a request with edited tokens."""
    grid: PatchGrid | None = None


class TracedEncoder(TracedModel):
    """A model that runs once, of any task."""

    generates = False
    model: Encoder | VisionTransformer

    def decoding_settings(self) -> DecodingSettings:
        """Placeholders: an encoder does not decode."""
        return DecodingSettings(
            method="greedy", beam_size=1, max_new_tokens=0, temperature=1.0, top_k=0, top_p=1.0, seed=0
        )

    @abstractmethod
    def encode_request(self, request: RunRequest) -> EncoderInput:
        """The model's input for a request."""

    def token_count(self, encoded: EncoderInput) -> int:
        """The length of the sequence that attention runs over."""
        return encoded.tensor.shape[1]

    @abstractmethod
    def interpret(self, request: RunRequest, encoded: EncoderInput, logits: Tensor) -> EncoderOutput:
        """The answer in the logits of the single row."""

    def trace(
        self,
        request: RunRequest,
        on_token: OnToken | None = None,
        should_stop: ShouldStop | None = None,
        dtype: torch.dtype = torch.float16,
    ) -> Trace:
        start = time.perf_counter()
        encoded = self.encode_request(request)
        recorder = AttentionRecorder(self.model, dtype)
        check_size(attention_nbytes(self.model, self.token_count(encoded), 0))  # before any computation
        with self.ablated(request):
            logits = self._forward(encoded, recorder)[0]
            check_logits(logits)
            result = self.interpret(request, encoded, logits.cpu())
        if request.source_tokens is not None:
            request = edited_request(request, result.tokens, result.text)
        arrays = {"attention/encoder": recorder.stacked("encoder")}
        header = schema.Trace(
            format=FORMAT,
            version=VERSION,
            id="",
            model=self.summary(),
            request=request,
            source=result.tokens,
            grid=result.grid,
            target=[],
            generated=[],
            output=result.output,
            predictions=result.predictions,
            log_probability=0.0,
            nodes=[],
            cuts=encoded.metadata.get("cuts"),
            arrays=array_specs(arrays),
            seconds=time.perf_counter() - start,
        )
        return Trace(header, arrays, self)

    def forward_trace(self, trace: Trace, attention_hook: AttentionHook) -> None:
        request = trace.header.request
        with self.ablated(request):
            self._forward(self.encode_request(request), attention_hook)

    def observed_pass(self, trace: Trace, observer: AbstractContextManager[object]) -> None:
        request = trace.header.request
        encoded = self.encode_request(request)
        with self.ablated(request), observer:
            self._forward(encoded, None)

    def node(self, trace: Trace, node_id: int) -> NodeAttention:
        raise UserError("This model does not generate: there is no search, and so no search node.")

    def unablated_pass(self, request: RunRequest, should_stop: ShouldStop | None = None) -> Callable[[], Tensor]:
        return partial(self._forward, self.encode_request(request), None)

    @torch.no_grad()
    def _forward(self, encoded: EncoderInput, attention_hook: AttentionHook | None) -> Tensor:
        logits: Tensor = self.model(encoded.tensor.to(self.model.device), attention_hook=attention_hook)
        return logits


class TracedTextEncoder(TracedEncoder):
    """An encoder of texts. Without a subclass for its task, a model with labels is taken as a classifier.

    A pipeline whose input is not plain text defines `encode_input(text)`: its token ids, without the special tokens
    around them.
    """

    task = "encoding"
    model: Encoder

    def __init__(self, pipeline: Pipeline, name: str, tokenizer: TextTokenizer | None = None) -> None:
        super().__init__(name)
        self.pipeline, self.model = pipeline, pipeline.model
        if tokenizer is None:
            if pipeline.loaded.tokenizer is None:
                raise UserError(f"{name} cannot be traced: it has no tokenizer.")
            tokenizer = encoder_tokenizer(pipeline.loaded.tokenizer, self.model.config.special_tokens)
        self.tokenizer = tokenizer
        self.detokenizer = TextDetokenizer(tokenizer)
        self.frame = surrounding_tokens(self.model.config.special_tokens)
        """The special tokens before and after a text."""
        self.labels: Sequence[str] = self.model.config.labels

    def encode_request(self, request: RunRequest) -> EncoderInput:
        encode = getattr(self.pipeline, "encode_input", self.tokenizer.encode)
        return self.encode_ids(self.edited_ids(request, list(encode(request.text))))

    def interpret(self, request: RunRequest, encoded: EncoderInput, logits: Tensor) -> EncoderOutput:
        tokens = self.tokens(encoded)
        text = request.text if request.source_tokens is None else self.text(encoded)
        if not self.labels:
            return EncoderOutput(tokens, "", [], text)
        items = [(text, logits)] if logits.dim() == 1 else zip((token.text for token in tokens), logits, strict=True)
        predictions = [Prediction(item=item, choices=likeliest_labels(row, self.labels)) for item, row in items]
        return EncoderOutput(tokens, " ".join(each.choices[0].label for each in predictions), predictions, text)

    def make_example(self, item: Any) -> Example | None:
        raise UserError(f"{self.name} has no loss to measure heads by.")

    def attention_example(self, item: Any) -> Example | None:
        found = self.text_example(item)
        return None if found is None else found.example

    def example_tokens(self, example: Example) -> tuple[list[Token], list[Token]]:
        return self.detokenizer.tokens(example.inputs.tolist()), []

    def text_example(self, text: str) -> TextExample | None:
        """The beginning of a text, as much as the model can read."""
        before, after = self.frame
        limit = self.model.embedding.embed_positions.max_length or MAX_TEXT_TOKENS
        room = max(min(limit, MAX_TEXT_TOKENS) - len(before) - len(after), 0)
        spans: list[tuple[int, int] | None]
        ids, spans = self.tokenizer.encode_with_offsets(text)  # type: ignore[assignment]
        if hasattr(self.pipeline, "encode_input"):
            ids = list(self.pipeline.encode_input(text))
            spans = [None] * len(ids)
        ids, spans = ids[:room], spans[:room]
        if not ids:
            return None
        row = torch.tensor([*before, *ids, *after])
        return TextExample(Example(row, row), [*[None] * len(before), *spans, *[None] * len(after)])

    def edited_ids(self, request: RunRequest, ids: Sequence[int]) -> list[int]:
        """The ids of a text without its frame, or those of its edited tokens."""
        before, after = map(len, self.frame)
        return self.detokenizer.edited_ids(request.source_tokens, ids, (before, after), (self.tokenizer.mask,))

    def encode_ids(self, ids: Sequence[int], **metadata: Any) -> EncoderInput:
        """Token ids between the special tokens of the frame, as the model takes them."""
        before, after = self.frame
        row = [*before, *ids, *after]
        if not row:
            raise UserError("The input is empty; enter a text.")
        limit = self.model.embedding.embed_positions.max_length
        if limit is not None and len(row) > limit:
            raise UserError(f"The text has {len(row)} tokens, but this model has {limit} positions; shorten it.")
        return EncoderInput(torch.tensor([row]), metadata)

    def tokens(self, encoded: EncoderInput) -> list[Token]:
        return self.detokenizer.tokens(encoded.tensor[0].tolist())

    def text(self, encoded: EncoderInput) -> str:
        return self.detokenizer.text(encoded.tensor[0].tolist())

    def label_index(self, label: str) -> int:
        if label not in self.labels:
            raise UserError(f"{label!r} is not a label of this model: {', '.join(self.labels[:10])} ….")
        return list(self.labels).index(label)


def likeliest_labels(logits: Tensor, labels: Sequence[str]) -> list[Choice]:
    """The likeliest labels with their probabilities.  logits: # (labels,)"""
    best = logits.double().softmax(dim=-1).topk(min(MAX_PREDICTIONS, len(labels)))
    return [
        Choice(label=labels[index], probability=probability)
        for index, probability in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]
