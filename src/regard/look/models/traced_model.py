"""The base of traced models: a model together with how its input is tokenized, run and displayed.

There are two kinds. Autoregressive models (`autoregressive.py`) generate token by token, and their search is recorded;
encoders (`encoder.py`) run once. Both record a `Trace` and can compute more about it afterwards. The subclasses for
single tasks are in `tasks.py` and `images.py`; a new task needs none.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from regard.attention.context import AttentionHook
from regard.data.text.documents import read_texts
from regard.errors import UserError
from regard.look.analysis.attention_maps import attention_specs
from regard.look.analysis.head_ablation import HeadMeans, ablate_heads, mean_outputs, needs_means
from regard.look.models.examples import SENTENCES
from regard.look.schema import (
    DecodingSettings,
    Metric,
    ModelSummary,
    NodeAttention,
    RunRequest,
    Sentences,
    Token,
    TokenEvent,
)
from regard.look.trace import Trace
from regard.model import count_parameters
from regard.task.base import Recipe

if TYPE_CHECKING:
    from PIL.Image import Image

OnToken = Callable[[TokenEvent], None]
ShouldStop = Callable[[], bool]

IGNORE = -100
"""The label of positions that do not count towards the loss, as in PyTorch."""


class Example(NamedTuple):
    """Input and labels for the loss; positions labeled `IGNORE` do not count."""

    inputs: Tensor  # (tokens,), or pixels (channels, height, width)
    labels: Tensor  # (tokens,), or () for one label of the whole input
    source: tuple[int, ...] | None = None
    """The encoder's input, for an encoder–decoder."""


class TextExample(NamedTuple):
    """An example of an encoder that reads a text, and the characters that each of its tokens covers."""

    example: Example
    spans: list[tuple[int, int] | None]
    """None for special tokens."""


class TracedModel(ABC):
    """A model that can be traced."""

    task: str
    input: Literal["text", "image"] = "text"
    generates: bool
    metrics: tuple[Metric, ...] = ("loss",)
    """What head importance can be measured by."""
    line_format: str = ""
    """How a line of a dev set is written, if not as plain text."""
    splits_sentences = False
    """Whether the task's own command splits a text into sentences."""
    reads_words = False
    """Whether the encoder reads words with a space between all of them, punctuation marks too."""
    model: nn.Module

    folder: Path | None = None
    """The run folder it was loaded from."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.id = name

    @property
    def language(self) -> str | None:
        """The code of the language that it reads, such as "en", if its name tells."""
        return None

    @property
    def target_language(self) -> str | None:
        """The code of the language that it translates into, if it is a translator whose name tells."""
        return None

    @property
    def examples(self) -> Sequence[str]:
        """Sample inputs; none for images, and for a language that has none."""
        return SENTENCES

    @property
    def example(self) -> str:
        """The first sample input, or an empty text."""
        return next(iter(self.examples), "")

    @abstractmethod
    def decoding_settings(self) -> DecodingSettings:
        """The default decoding settings."""

    @abstractmethod
    def trace(
        self,
        request: RunRequest,
        on_token: OnToken | None = None,
        should_stop: ShouldStop | None = None,
        dtype: torch.dtype = torch.float16,
    ) -> Trace:
        """Run the model and record a trace, with arrays of this dtype."""

    @abstractmethod
    def forward_trace(self, trace: Trace, attention_hook: AttentionHook) -> None:
        """Repeat the teacher-forced pass over a trace's input and output, observed by `attention_hook`."""

    @abstractmethod
    def observed_pass(self, trace: Trace, observer: AbstractContextManager[object]) -> None:
        """Repeat the same pass within `observer`, which hooks into modules; attention weights are not computed."""

    @abstractmethod
    def node(self, trace: Trace, node_id: int) -> NodeAttention:
        """The attention of any search node of a trace, and its likeliest next tokens."""

    @abstractmethod
    def unablated_pass(self, request: RunRequest, should_stop: ShouldStop | None = None) -> Callable[[], object]:
        """The pass over a request and the output of the model without ablation, which mean ablation averages over."""

    @abstractmethod
    def make_example(self, item: Any) -> Example | None:
        """Input and labels of an item of a dev set; None if it cannot be used."""

    def attention_example(self, item: Any) -> Example | None:
        """The example whose attention shows what heads do: by default, the one for the loss."""
        return self.make_example(item)

    def example_tokens(self, example: Example) -> tuple[list[Token], list[Token]]:
        """The tokens that the encoder reads, and those that the decoder reads and writes; empty where there is none."""
        raise UserError(f"{self.name} has no tokens.")

    def split_text(self, text: str) -> Sentences:
        """The sentences of a text that the task's own command runs one by one: by default, the whole text."""
        return Sentences(sentences=[text])

    def text_example(self, text: str) -> TextExample | None:
        """An example of an encoder that reads a text; None if it is too long, or if there is no encoder."""
        return None

    def parse_line(self, line: str) -> Any:
        """The item that a line of a dev set describes: by default, the text itself."""
        return line

    def read_items(self, recipe: Recipe, source: Any) -> Iterator[Any]:
        """The items of one of the recipe's data sources: by default, its lines of more than two words."""
        lines = (line for text in read_texts(source) for line in text.splitlines())
        return (line for line in lines if len(line.split()) > 2)

    def fallback_items(self, recipe: Recipe | None, folder: Path | None) -> Iterator[Any] | None:
        """Items for a model whose recipe names no data that is available, if there are any: what its run held out."""
        source = None if recipe is None or folder is None else recipe.held_out_source(folder)
        return None if recipe is None or source is None else self.read_items(recipe, source)

    def bleu(self, items: Sequence[Any], recipe: Recipe | None) -> float:
        """BLEU on the items of a dev set, for a model that has this metric."""
        raise NotImplementedError

    def prepare_image(self, image: Any) -> "Image":
        """An image (a path, a Pillow image or an array) after resizing and cropping, for a model of images."""
        raise UserError(f"{self.name} takes a text, not an image.")

    def summary(self) -> ModelSummary:
        return ModelSummary(
            id=self.id,
            name=self.name,
            task=self.task,
            input=self.input,
            generates=self.generates,
            parameters=count_parameters(self.model),
            example=self.example,
            examples=list(self.examples),
            language=self.language,
            splits_sentences=self.splits_sentences,
            target_language=self.target_language,
            attention=attention_specs(self.model),
            decoding=self.decoding_settings(),
            metrics=list(self.metrics),
        )

    def ablated(self, request: RunRequest, should_stop: ShouldStop | None = None) -> AbstractContextManager[None]:
        """Ablate the heads that a request names within the block."""
        return self.ablation(request, should_stop)()

    def ablation(
        self, request: RunRequest, should_stop: ShouldStop | None = None
    ) -> Callable[[], AbstractContextManager[None]]:
        """What `ablated` returns, for any number of blocks: means that it needs are computed once."""
        heads = request.ablated_heads or []
        means: HeadMeans | None = None
        if needs_means(heads):
            run = self.unablated_pass(request, should_stop)
            with mean_outputs(self.model) as means:
                run()
        return lambda: ablate_heads(self.model, heads, means)


def check_logits(logits: Tensor) -> None:
    """Refuse logits without a softmax, which only a model with damaged weights computes.  # (…, vocab_size)"""
    if not logits.amax(dim=-1).isfinite().all():
        raise UserError(
            "The model's logits are not finite (NaN or infinite): its weights are damaged, or its training diverged; "
            "train it again, or use an earlier checkpoint."
        )


def edited_request(request: RunRequest, tokens: Sequence[Token], text: str) -> RunRequest:
    """A request with edited tokens, as the trace stores it: all tokens of the input, and the text they spell."""
    return request.model_copy(update={"text": text, "source_tokens": [token.piece for token in tokens]})
