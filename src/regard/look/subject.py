"""What can be looked into: a model together with what it reads, how it answers, and how both are shown.

There are two sorts. Those that write word after word (`writer.py`) are searched, and their search is watched. Those
that only read (`readers.py`) are run once. Both give a `Trace`, and can be asked afterwards about what it shows.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch
from torch import Tensor, nn

from regard.look.attentions import facts_of
from regard.look.switch import Means, mean_outputs, needs_means, switched_off
from regard.look.trace import Trace
from regard.look.wire import DecodingSettings, ModelSummary, NodeAttention, RunRequest, TaskKind, Token, TokenEvent
from regard.model import count_parameters

Hear = Callable[[TokenEvent], None]
Stop = Callable[[], bool]


class Subject(ABC):
    """A model that can be looked into."""

    task: TaskKind
    model: nn.Module

    folder: Path | None = None
    """Where it was loaded from, if it was."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.id = name

    @property
    @abstractmethod
    def example(self) -> str:
        """A text worth trying."""

    @abstractmethod
    def settings(self) -> DecodingSettings:
        """How it decodes where nothing is asked for."""

    @abstractmethod
    def trace(
        self,
        request: RunRequest,
        hear: Hear | None = None,
        stop: Stop | None = None,
        dtype: torch.dtype = torch.float16,
    ) -> Trace:
        """Run the model and keep what was seen, arrays in this precision."""

    @abstractmethod
    def forced(self, trace: Trace, watch: Callable[[nn.Module, Tensor], None]) -> None:
        """The pass over what a trace has read and written once more, watched."""

    @abstractmethod
    def node(self, trace: Trace, number: int) -> NodeAttention:
        """The attention of any node of a trace, and the choice behind it."""

    @abstractmethod
    def whole_pass(self, request: RunRequest) -> Callable[[], object]:
        """The pass over a request and the answer that the whole model gives to it: what means are taken over."""

    def summary(self) -> ModelSummary:
        return ModelSummary(
            id=self.id,
            name=self.name,
            task=self.task,
            parameters=count_parameters(self.model),
            example=self.example,
            attention=facts_of(self.model),
            decoding=self.settings(),
        )

    @contextmanager
    def changed(self, request: RunRequest) -> Iterator[None]:
        """While the block runs the model has the heads off that a request wants off."""
        off = request.off or []
        means: Means | None = None
        if needs_means(off):
            whole = self.whole_pass(request)
            with mean_outputs(self.model) as means:
                whole()
        with switched_off(self.model, off, means) if off else nullcontext():
            yield


def edited_request(request: RunRequest, tokens: Sequence[Token], text: str) -> RunRequest:
    """A request whose tokens were edited, as it is kept: all tokens as they were read, and the text they spell."""
    return request.model_copy(update={"text": text, "source_tokens": [token.piece for token in tokens]})
