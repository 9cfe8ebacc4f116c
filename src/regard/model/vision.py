"""Pictures as sentences: each patch is a word, and an encoder reads them (ViT, Dosovitskiy et al. 2021).

A class token stands first and gathers what the picture shows, unless the mean of the patches does; registers are
further tokens that belong to no patch (Darcet et al. 2024). A picture of another size than the trained one has another
grid of patches, for which learned positions are interpolated.
"""

from typing import Annotated, Literal, Self

import torch
from pydantic import Field, PositiveFloat, PositiveInt, model_validator
from torch import Tensor, nn
from torch.nn import functional

from regard.attention import Context, NoPositionConfig, Sinusoidal
from regard.attention.context import Watch
from regard.config import Config, ConfigError
from regard.errors import UserError
from regard.model.readout import Labelling, Labels, Pooler, check_labels
from regard.model.stack import Stack, StackConfig, check_stack

Size = tuple[int, int]  # rows and columns


class PixelsConfig(Config):
    """How pixels are normalised before the model sees them: one number for all channels, or one for each."""

    mean: Annotated[tuple[float, ...], Field(strict=False, min_length=1)] = (0.5,)
    std: Annotated[tuple[PositiveFloat, ...], Field(strict=False, min_length=1)] = (0.5,)

    def apply(self, pictures: Tensor) -> Tensor:
        """Pixels as the model takes them, in float32.  pictures: # (…, channels, height, width)

        Whole numbers run from 0 to 255 (torch.uint8), others from 0 to 1.
        """
        values = pictures.float() / 255 if pictures.dtype == torch.uint8 else pictures.float()
        mean, std = (_each_channel(numbers, values) for numbers in (self.mean, self.std))
        return (values - mean) / std


class LearnedGridConfig(Config):
    """A trained vector for each patch of the trained size, and one for the class token."""

    kind: Literal["learned"] = "learned"

    def build(self, grid: Size, width: int, class_token: bool) -> "Grid":
        return LearnedGrid(grid, width, class_token)


class SinusoidalGridConfig(Config):
    """Half of the width is the code of a patch's row, half that of its column; the class token has none."""

    kind: Literal["sinusoidal"] = "sinusoidal"
    base: float = Field(default=10_000.0, gt=1)

    def build(self, grid: Size, width: int, class_token: bool) -> "Grid":
        return SinusoidalGrid(width, self.base)


AnyGrid = Annotated[LearnedGridConfig | SinusoidalGridConfig, Field(discriminator="kind")]


class VisionTransformerConfig(Config):
    """Settings of a `VisionTransformer`."""

    kind: Literal["vision"] = "vision"
    image: PositiveInt | Annotated[tuple[PositiveInt, PositiveInt], Field(strict=False)] = 224
    """The size that is trained on: height and width, or one number for both. Others can be read, too."""
    patch: int = Field(default=16, ge=1)
    channels: int = Field(default=3, ge=1)
    width: int = Field(default=512, ge=1)
    encoder: StackConfig = StackConfig()
    position: AnyGrid = LearnedGridConfig()
    pooling: Literal["class", "mean"] = "class"
    """Whether a class token stands for the picture, or the mean of its patches: then there is no such token."""
    registers: int = Field(default=0, ge=0)
    dropout: float = Field(default=0.1, ge=0, lt=1)
    """What is dropped of patches that know where they stand."""
    representation: int | None = Field(default=None, ge=1)
    """Width of a layer with tanh before the classes, as ViT has it while it is pretrained."""
    classes: Annotated[int, Field(ge=0)] | Labels = 1000
    """The names of what is told apart, or their count; 0 for a model that gives the vector of a picture."""
    pixels: PixelsConfig = PixelsConfig()

    @property
    def size(self) -> Size:
        """Height and width."""
        return (self.image, self.image) if isinstance(self.image, int) else self.image

    @property
    def grid(self) -> Size:
        """How many patches lie below and beside each other at the trained size."""
        return self.size[0] // self.patch, self.size[1] // self.patch

    @property
    def tokens(self) -> int:
        """What is read of a picture of the trained size: its patches, the class token if there is one, registers."""
        return self.grid[0] * self.grid[1] + (self.pooling == "class") + self.registers

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes; their numbers where they have none."""
        return tuple(map(str, range(self.classes))) if isinstance(self.classes, int) else self.classes

    @model_validator(mode="after")
    def _fits(self) -> Self:
        check_stack("encoder", self.encoder, self.width, NoPositionConfig())
        check_labels("classes", self.labels)
        if any(side % self.patch for side in self.size):
            raise ConfigError(
                "image",
                f"patches of {self.patch} pixels do not fill a picture of {_times(self.size)}; choose multiples.",
            )
        if isinstance(self.position, SinusoidalGridConfig) and self.width % 2:
            raise ConfigError("position.kind", f"rows and columns cannot share the odd width {self.width} evenly.")
        for name, numbers in (("mean", self.pixels.mean), ("std", self.pixels.std)):
            if len(numbers) not in (1, self.channels):
                raise ConfigError(f"pixels.{name}", f"found {len(numbers)} numbers for {self.channels} channels.")
        return self

    def build(self) -> "VisionTransformer":
        return VisionTransformer(self)


class VisionTransformer(nn.Module):
    """Says what a picture shows."""

    def __init__(self, config: VisionTransformerConfig) -> None:
        super().__init__()
        self.config = config
        width, has_class = config.width, config.pooling == "class"
        self.patches = Patches(config.patch, config.channels, width)
        self.position = config.position.build(config.grid, width, has_class)
        self.class_token = nn.Parameter(0.02 * torch.randn(width)) if has_class else None
        self.registers = Registers(config.registers, width) if config.registers else None
        self.dropout = nn.Dropout(config.dropout)
        self.encoder = Stack(config.encoder, width, NoPositionConfig(), causal=False)
        self.representation = None if config.representation is None else Pooler(width, config.representation)
        self.head = Labelling(len(config.labels), config.representation or width) if config.labels else None

    @property
    def device(self) -> torch.device:
        return self.patches.project.weight.device

    def forward(self, pixels: Tensor, *, watch: Watch | None = None) -> Tensor:
        """A score for each class; the picture's vector, if there are none.  # (batch, classes) or (batch, width)

        pixels: # (batch, channels, height, width), normalised as `config.pixels` says. Height and width are any
        multiples of the patch.
        """
        vectors = self.encode(pixels, watch=watch)
        alone = self.class_token is not None
        seen = vectors[:, 0] if alone else vectors[:, self.config.registers :].mean(dim=1)
        for part in (self.representation, self.head):
            seen = seen if part is None else part(seen)
        return seen

    def encode(self, pixels: Tensor, *, watch: Watch | None = None) -> Tensor:
        """The class token if there is one, the registers, and the patches row by row: each in the light of the others.

        pixels: # (batch, channels, height, width); gives (batch, tokens, width)
        """
        patches = self.patches(pixels)  # (batch, rows, columns, width)
        batch, rows, columns, _ = patches.shape
        parts = [(patches + self.position(rows, columns).to(patches.dtype)).flatten(1, 2)]
        if self.registers is not None:
            parts.insert(0, self.registers.table.expand(batch, -1, -1))
        if self.class_token is not None:
            parts.insert(0, self.position.placed(self.class_token).expand(batch, 1, -1))
        x = self.dropout(torch.cat(parts, dim=1))
        context = Context(x[..., 0], watch=watch)  # which looks at no more than how many there are, and where
        vectors: Tensor = self.encoder(x, context, self.encoder.states())
        return vectors


class Patches(nn.Module):
    """Cuts pictures into squares and makes a vector of each by one product.

    The weight, seen as (width, channels, patch, patch), is that of a convolution that moves by whole patches.
    """

    def __init__(self, patch: int, channels: int, width: int) -> None:
        super().__init__()
        self.patch, self.channels = patch, channels
        self.project = nn.Linear(channels * patch * patch, width)
        nn.init.xavier_uniform_(self.project.weight)
        nn.init.zeros_(self.project.bias)

    def forward(self, pixels: Tensor) -> Tensor:
        """pixels: # (batch, channels, height, width); gives (batch, rows, columns, width)"""
        self._check(pixels)
        batch, channels, height, width = pixels.shape
        size = self.patch
        cut = pixels.to(self.project.weight.dtype).reshape(batch, channels, height // size, size, width // size, size)
        made: Tensor = self.project(cut.permute(0, 2, 4, 1, 3, 5).flatten(3))
        return made

    def _check(self, pixels: Tensor) -> None:
        if pixels.dim() != 4 or pixels.shape[1] != self.channels or not pixels.dtype.is_floating_point:
            raise UserError(
                f"Pixels must be floating-point numbers of the shape (batch, {self.channels}, height, width); "
                f"found {tuple(pixels.shape)} of {pixels.dtype}."
            )
        height, width = pixels.shape[2:]
        if height % self.patch or width % self.patch or not height or not width:
            raise UserError(
                f"A picture of {_times((height, width))} pixels does not divide into patches of {self.patch}; "
                "resize it to multiples of that."
            )


class Registers(nn.Module):
    """Tokens that belong to no patch: room to note what concerns the whole picture."""

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.table = nn.Parameter(0.02 * torch.randn(count, width))  # (registers, width)


class Grid(nn.Module):
    """Codes for the places of patches; the class token has none, unless a kind says otherwise."""

    def forward(self, rows: int, columns: int) -> Tensor:
        """The code of each patch.  # (rows, columns, width)"""
        raise NotImplementedError

    def placed(self, class_token: Tensor) -> Tensor:
        """The class token, knowing its place.  # (width,)"""
        return class_token


class LearnedGrid(Grid):
    """A vector for each place. For a grid of another size they are interpolated as pixels of a picture are."""

    def __init__(self, size: Size, width: int, class_token: bool) -> None:
        super().__init__()
        self.size, self.first = size, int(class_token)
        self.table = nn.Parameter(torch.randn(self.first + size[0] * size[1], width) * 0.02)  # (class + patches, width)

    def forward(self, rows: int, columns: int) -> Tensor:
        codes: Tensor = self.table[self.first :].unflatten(0, self.size)  # (rows, columns, width)
        if (rows, columns) == self.size:
            return codes
        pictures = codes.permute(2, 0, 1)[None]  # (1, width, rows, columns)
        resized = functional.interpolate(pictures, (rows, columns), mode="bicubic", align_corners=False)
        return resized[0].permute(1, 2, 0)

    def placed(self, class_token: Tensor) -> Tensor:
        return class_token + self.table[0]


class SinusoidalGrid(Grid):
    """Sines and cosines of the row beside those of the column: there are codes for any size."""

    def __init__(self, width: int, base: float) -> None:
        super().__init__()
        self.side = Sinusoidal(width // 2, base)

    def forward(self, rows: int, columns: int) -> Tensor:
        device = self.side.frequencies.values.device
        row, column = (self.side.encode(torch.arange(count, device=device)) for count in (rows, columns))
        return torch.cat((row[:, None].expand(-1, columns, -1), column[None].expand(rows, -1, -1)), dim=-1)


def _each_channel(numbers: tuple[float, ...], like: Tensor) -> Tensor:
    """Numbers as a tensor on the device of another.  # (numbers, 1, 1)

    Written there one by one: copying them from the host is what a CUDA graph refuses to record.
    """
    return torch.stack([like.new_full((1, 1), number) for number in numbers])


def _times(size: Size) -> str:
    return f"{size[0]} × {size[1]}"
