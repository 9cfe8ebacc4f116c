"""Looking into models that read and do not write: those that fill gaps, label texts, tag words, classify pictures.

They are run once. The attention of that one pass is the trace, and what the model answers stands in its labels.
"""

import base64
import binascii
import io
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from regard.attention.context import Watch
from regard.data.labelled import encode_words
from regard.data.words import split_words
from regard.errors import UserError
from regard.look import wire
from regard.look.attentions import Gathered, bytes_of_weights
from regard.look.subject import Hear, Stop, Subject, edited_request
from regard.look.tokens import TextSpeller
from regard.look.trace import FORMAT, VERSION, Trace, check_size, facts_of_arrays
from regard.look.wire import Choice, DecodingSettings, Grid, Labelled, NodeAttention, RunRequest, Token
from regard.model import ClassifyConfig, Encoder, VisionTransformer
from regard.task.classifier import Classifier
from regard.task.encoders import frame
from regard.task.filler import MASK, Filler, GappedRow
from regard.task.labeller import Labeller

if TYPE_CHECKING:
    from PIL.Image import Image

SHOWN = 5
"""Labels or fillers that are shown of each."""
PIXELS = 1 << 25
"""Pixels of a picture that is sent."""
FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP")


@dataclass(frozen=True)
class Answered:
    """What a model has read, and what it says to it."""

    tokens: list[Token]
    output: str
    labels: list[Labelled]
    text: str = ""
    """What was read, as a text, where its tokens may have been edited."""
    grid: Grid | None = None


@dataclass
class Read:
    """What goes into a model, and what is known of it besides."""

    tensor: Tensor  # (1, tokens), or pixels (1, channels, height, width)
    facts: dict[str, Any] = field(default_factory=dict)


class ReaderSubject(Subject):
    """A model that reads, of whatever task."""

    model: Encoder | VisionTransformer

    def settings(self) -> DecodingSettings:
        """It decodes nothing, so these are only there to be there."""
        return DecodingSettings(method="greedy", beams=1, longest=0, temperature=1.0, top_k=0, top_p=1.0, seed=0)

    @abstractmethod
    def read(self, request: RunRequest) -> Read:
        """What the model reads of a request."""

    def count(self, read: Read) -> int:
        """How many tokens are read."""
        return read.tensor.shape[1]

    @abstractmethod
    def answered(self, request: RunRequest, read: Read, scores: Tensor) -> Answered:
        """What it says, from the scores it gave to one row."""

    def trace(
        self,
        request: RunRequest,
        hear: Hear | None = None,
        stop: Stop | None = None,
        dtype: torch.dtype = torch.float16,
    ) -> Trace:
        begun = time.perf_counter()
        read = self.read(request)
        gathered = Gathered(self.model, dtype)
        check_size(bytes_of_weights(self.model, self.count(read), 0))  # before anything is computed
        with self.changed(request):
            scores = self._pass(read, gathered)[0]
            answered = self.answered(request, read, scores.cpu())
        if request.source_tokens is not None:
            request = edited_request(request, answered.tokens, answered.text)
        arrays = {"attention/encoder": gathered.stacked("encoder")}
        header = wire.Trace(
            format=FORMAT,
            version=VERSION,
            id="",
            model=self.summary(),
            request=request,
            source=answered.tokens,
            grid=answered.grid,
            target=[],
            written=[],
            output=answered.output,
            labels=answered.labels,
            total=0.0,
            nodes=[],
            arrays=facts_of_arrays(arrays),
            seconds=time.perf_counter() - begun,
        )
        return Trace(header, arrays, self)

    def forced(self, trace: Trace, watch: Watch) -> None:
        request = trace.header.request
        with self.changed(request):
            self._pass(self.read(request), watch)

    def node(self, trace: Trace, number: int) -> NodeAttention:
        raise UserError("This model only reads: there is no search, and no node of one to look at.")

    def whole_pass(self, request: RunRequest) -> Callable[[], Tensor]:
        return partial(self._pass, self.read(request), None)

    @torch.no_grad()
    def _pass(self, read: Read, watch: Watch | None) -> Tensor:
        scores: Tensor = self.model(read.tensor.to(self.model.device), watch=watch)
        return scores


class TextReaderSubject(ReaderSubject):
    """One that reads texts, with tokens around them."""

    model: Encoder

    def __init__(self, name: str, model: Encoder, speller: TextSpeller) -> None:
        super().__init__(name)
        self.model, self.read_by = model, speller
        self.frame = frame(model.config.tokens)

    def ids(self, request: RunRequest, usual: Sequence[int]) -> list[int]:
        """The ids of a text without those around it, or those of its tokens as they were edited."""
        if request.source_tokens is None:
            return list(usual)
        before, after = map(len, self.frame)
        given = request.source_tokens[before : len(request.source_tokens) - after]
        ids = self.read_by.edited(given, usual)
        wrong = next((one for one in ids if one in self.read_by.hidden and one != self.read_by.tokenizer.mask), None)
        if wrong is not None:
            raise UserError(f"{self.read_by.piece(wrong)} cannot stand within a text; put a word there.")
        return ids

    def row(self, ids: Sequence[int], **facts: Any) -> Read:
        """Ids with those around them, as the model takes them."""
        before, after = self.frame
        whole = [*before, *ids, *after]
        if not whole:
            raise UserError("There is nothing to read; give a text.")
        limit = self.model.input.position.limit
        if limit is not None and len(whole) > limit:
            raise UserError(f"The text has {len(whole)} tokens, and this model has positions for {limit}; shorten it.")
        return Read(torch.tensor([whole]), facts)

    def tokens(self, read: Read) -> list[Token]:
        return self.read_by.tokens(read.tensor[0].tolist())

    def _text(self, read: Read) -> str:
        return self.read_by.text(read.tensor[0].tolist())


class FillingSubject(TextReaderSubject):
    """A model that fills gaps."""

    task = "filling"
    example = f"The {MASK} ate the mouse."

    def __init__(self, filler: Filler, name: str) -> None:
        super().__init__(name, filler.encoder, TextSpeller(filler.text))
        self.filler = filler

    def read(self, request: RunRequest) -> Read:
        before, after = self.frame
        usual = self.filler.row(request.text) if MASK in request.text else None
        ids = (
            self.filler.text.encode(request.text)
            if usual is None
            else usual.ids[len(before) : len(usual.ids) - len(after)]
        )
        row = self.row(self.ids(request, ids))
        numbers = row.tensor[0].tolist()
        places = [range(at, at + 1) for at, number in enumerate(numbers) if number == self.filler.mask]
        same = usual is not None and len(usual.places) == len(places)
        spaced = usual.spaced if usual is not None and same else [False] * len(places)
        row.facts["row"] = GappedRow(numbers, places, spaced)
        return row

    def answered(self, request: RunRequest, read: Read, scores: Tensor) -> Answered:
        row: GappedRow = read.facts["row"]
        tokens = self.tokens(read)
        edited = request.source_tokens is not None or request.text.count(MASK) != len(row.places)
        text = self._with_marks(row) if edited else request.text
        if not row.places:
            return Answered(tokens, text, [], text)
        (gaps,) = self.filler.fill_rows([row], top=SHOWN)
        labels = [
            Labelled(
                of=f"gap {number}",
                choices=[Choice(label=guess.text, probability=guess.probability) for guess in guesses],
            )
            for number, guesses in enumerate(gaps, start=1)
        ]
        return Answered(tokens, self.filler.filled(text, gaps), labels, text)

    def _with_marks(self, row: GappedRow) -> str:
        """The text of a row whose tokens were edited, marks in its gaps."""
        parts, begin = [], 0
        for place, spaced in zip(row.places, row.spaced, strict=True):
            parts.append(self.filler.text.decode(row.ids[begin : place.start]) + (" " if spaced else ""))
            begin = place.stop
        return MASK.join([*parts, self.filler.text.decode(row.ids[begin:])])


class LabellingSubject(TextReaderSubject):
    """A model that labels a text, or each of its words."""

    example = "The cat ate the mouse."

    def __init__(self, labeller: Labeller, name: str) -> None:
        super().__init__(name, labeller.encoder, TextSpeller(labeller.text))
        self.labeller = labeller
        self.whole = isinstance(labeller.encoder.config.head, ClassifyConfig)
        self.task = "labelling" if self.whole else "tagging"

    def read(self, request: RunRequest) -> Read:
        text = self.labeller.text
        if self.whole:
            ids = self.ids(request, text.encode(request.text))
            longest = self.labeller.longest
            room = None if longest is None else max(longest - sum(map(len, self.frame)), 0)
            return self.row(ids[:room])
        words = split_words(request.text)
        if not words:
            raise UserError("There is no word to tag; give a sentence.")
        ((usual, firsts),) = encode_words([words], text)
        ids = self.ids(request, usual)
        if ids != list(usual):  # edited: words are those that the tokens make up
            words = split_words(text.decode(ids))
            ((ids, firsts),) = encode_words([words], text)
        return self.row(ids, words=words, firsts=[first + len(self.frame[0]) for first in firsts])

    def answered(self, request: RunRequest, read: Read, scores: Tensor) -> Answered:
        if self.whole:
            text = request.text if request.source_tokens is None else self._text(read)
            labelled = [Labelled(of=text, choices=self._choices(scores))]
            return Answered(self.tokens(read), labelled[0].choices[0].label, labelled, text)
        words, firsts = read.facts["words"], read.facts["firsts"]
        labels = [
            Labelled(of=word, choices=self._choices(scores[first])) for word, first in zip(words, firsts, strict=True)
        ]
        output = " ".join(f"{one.of}/{one.choices[0].label}" for one in labels)
        return Answered(self.tokens(read), output, labels, self._text(read))

    def _choices(self, scores: Tensor) -> list[Choice]:
        return choices(scores, self.labeller.labels)


class PicturesSubject(ReaderSubject):
    """A classifier of pictures. In place of a text stands the path of a file, or the picture itself is sent."""

    task = "pictures"
    example = ""
    model: VisionTransformer

    def __init__(self, classifier: Classifier, name: str) -> None:
        super().__init__(name)
        self.classifier, self.model = classifier, classifier.vision_transformer

    def read(self, request: RunRequest) -> Read:
        if request.picture is None:
            raise UserError("There is no picture to look at; give one.")
        pixels = self.classifier.pixels(sent_picture(request.picture))
        return Read(pixels[None])

    def count(self, read: Read) -> int:
        return int(read.tensor[0, 0].numel()) // self.model.config.patch**2 + 1 + self.model.config.registers

    def answered(self, request: RunRequest, read: Read, scores: Tensor) -> Answered:
        config = self.model.config
        rows, columns = (side // config.patch for side in read.tensor.shape[2:])
        special = ["⟨class⟩"] if config.pooling == "class" else []
        special += [f"⟨register {number}⟩" for number in range(1, config.registers + 1)]
        tokens = [Token(id=-1, piece=one, text=one, word=-1, special=True) for one in special]
        for place in range(rows * columns):
            name = f"{place // columns},{place % columns}"
            tokens.append(Token(id=-1, piece=name, text=name, word=place, special=False))
        labels = [Labelled(of="picture", choices=choices(scores, self.classifier.labels))]
        grid = Grid(rows=rows, columns=columns, picture=as_address(self.seen(read.tensor[0])))
        return Answered(tokens, labels[0].choices[0].label, labels, grid=grid)

    def seen(self, pixels: Tensor) -> "Image":
        """The picture as the model has it, cut and scaled; how it was normalised is undone."""
        from PIL import Image

        preparation = self.classifier.preparation
        scale = self.model.config.pixels if preparation is None else preparation.pixels
        mean, std = (torch.tensor(numbers).reshape(-1, 1, 1) for numbers in (scale.mean, scale.std))
        levels = ((pixels * std + mean).clamp(0, 1) * 255).round().to(torch.uint8).numpy()
        return Image.fromarray(levels[0] if len(levels) == 1 else np.ascontiguousarray(levels.transpose(1, 2, 0)))


def choices(scores: Tensor, labels: Sequence[str]) -> list[Choice]:
    """The likeliest labels.  scores: # (labels,)"""
    best = scores.double().softmax(dim=-1).topk(min(SHOWN, len(labels)))
    return [
        Choice(label=labels[number], probability=chance)
        for number, chance in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]


def sent_picture(address: str) -> "Image":
    """The picture in a data: address."""
    from PIL import Image

    kind, comma, content = address.partition(",")
    if not comma or not kind.startswith("data:image/") or not kind.endswith(";base64"):
        raise UserError("A picture is sent as a data: address, such as data:image/png;base64,….")
    try:
        image = Image.open(io.BytesIO(base64.b64decode(content, validate=True)), formats=FORMATS)
    except (binascii.Error, OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        raise UserError(f"The picture cannot be read; send one of these: {', '.join(FORMATS)}.") from None
    if image.width * image.height > PIXELS:
        raise UserError(f"The picture has {image.width:,} × {image.height:,} pixels; make it smaller.")
    return image


def as_address(image: "Image") -> str:
    """A picture as a data: address."""
    written = io.BytesIO()
    image.save(written, "PNG")
    return "data:image/png;base64," + base64.b64encode(written.getvalue()).decode("ascii")
