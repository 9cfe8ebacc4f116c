"""The Vision Transformer: an encoder over the patches of an image (ViT, Dosovitskiy et al. 2021).

The vector of an image is that of a CLS token or the mean over its patches. Register tokens belong to no patch (Darcet
et al. 2024). For images of another size than the one trained on, learned positions are interpolated to their grid.
"""

from typing import Annotated, ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional

from regard.attention import Context, NoPositionConfig, Sinusoidal
from regard.attention.context import AttentionHook
from regard.config import Config, ConfigError
from regard.errors import UserError
from regard.model.heads import ClassificationHead, Labels, Pooler, check_labels
from regard.model.stack import Stack, StackConfig, check_stack

Size = tuple[int, int]  # rows and columns
Side = Annotated[int, Field(gt=0, le=100_000)]
"""The height or width of an image, in pixels."""


class PixelsConfig(Config):
    """The normalization of pixels: one number for all channels, or one per channel."""

    mean: Annotated[tuple[Annotated[float, Field(ge=-1e3, le=1e3)], ...], Field(strict=False, min_length=1)] = (0.5,)
    """Subtracted from pixels, whose values are from 0 to 1."""
    std: Annotated[tuple[Annotated[float, Field(ge=1e-6, le=1e3)], ...], Field(strict=False, min_length=1)] = (0.5,)
    """What pixels are divided by after that."""

    def apply(self, images: Tensor) -> Tensor:
        """Normalized pixels in float32.  images: # (…, channels, height, width)

        torch.uint8 ranges from 0 to 255, floating point from 0 to 1.
        """
        values = images.float() / 255 if images.dtype == torch.uint8 else images.float()
        mean, std = (_channel_tensor(numbers, values) for numbers in (self.mean, self.std))
        return (values - mean) / std


class LearnedGridConfig(Config):
    """A learned vector for each patch of an image of the trained size, and one for the CLS token."""

    kind: Literal["learned"] = "learned"

    def build(self, grid: Size, width: int, has_cls: bool) -> "Grid":
        return LearnedGrid(grid, width, has_cls)


class SinusoidalGridConfig(Config):
    """Sinusoids of a patch's row in one half of the width, of its column in the other; none for the CLS token."""

    kind: Literal["sinusoidal"] = "sinusoidal"
    theta: float = Field(default=10_000.0, gt=1, le=1e12)
    """The base of the wavelengths."""

    def build(self, grid: Size, width: int, has_cls: bool) -> "Grid":
        return SinusoidalGrid(width, self.theta)


AnyGrid = Annotated[LearnedGridConfig | SinusoidalGridConfig, Field(discriminator="kind")]


class VisionTransformerConfig(Config):
    """A vision transformer: a Transformer encoder over the patches of an image (Dosovitskiy et al. 2021)."""

    kind: Literal["vision"] = "vision"
    image_size: Side | Annotated[tuple[Side, Side], Field(strict=False)] = 224
    """The image size to train on: height and width, or one number for both. Other sizes work too."""
    patch_size: int = Field(default=16, ge=1, le=10_000)
    """The height and width of a patch, in pixels; they must divide those of the image."""
    channels: int = Field(default=3, ge=1, le=1_000)
    """The channels of an image: 1 for grayscale, 3 for RGB."""
    width: int = Field(default=512, ge=1, le=1_000_000)
    """The width of the model: the features of each patch between layers (d_model)."""
    encoder: StackConfig = StackConfig()
    """The layers of the encoder."""
    position: AnyGrid = LearnedGridConfig()
    """The positional encoding of patches."""
    pooling: Literal["cls", "mean"] = "cls"
    """The vector of an image: that of a CLS token, or the mean over patches (then there is no such token)."""
    registers: int = Field(default=0, ge=0, le=5_000)
    """The number of register tokens: extra learned tokens beside the patches (Darcet et al. 2024)."""
    dropout: float = Field(default=0.1, ge=0, lt=1)
    """The dropout probability of the embedded patches."""
    representation_size: int | None = Field(default=None, ge=1, le=1_000_000)
    """The width of a layer with tanh before the classifier, as in pretrained ViTs."""
    classes: Annotated[int, Field(ge=0, le=1_000_000)] | Labels = 1000
    """The names of the classes, or their number; 0 for a model that gives the vector of an image."""
    pixels: PixelsConfig = PixelsConfig()

    @property
    def size(self) -> Size:
        """Height and width."""
        return (self.image_size, self.image_size) if isinstance(self.image_size, int) else self.image_size

    @property
    def grid(self) -> Size:
        """Rows and columns of patches at the trained size."""
        return self.size[0] // self.patch_size, self.size[1] // self.patch_size

    @property
    def sequence_length(self) -> int:
        """Tokens of an image of the trained size: its patches, the CLS token if there is one, registers."""
        return self.grid[0] * self.grid[1] + (self.pooling == "cls") + self.registers

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes; their numbers if they have none."""
        return tuple(map(str, range(self.classes))) if isinstance(self.classes, int) else self.classes

    @model_validator(mode="after")
    def _check_sizes(self) -> Self:
        check_stack("encoder", self.encoder, self.width, NoPositionConfig())
        check_labels("classes", self.labels)
        if any(side % self.patch_size for side in self.size):
            raise ConfigError(
                "image_size",
                f"patches of {self.patch_size} pixels do not fill an image of {_times(self.size)}; choose multiples.",
            )
        if isinstance(self.position, SinusoidalGridConfig) and self.width % 2:
            raise ConfigError("position.kind", f"found 'sinusoidal', which needs an even width; width is {self.width}.")
        for name, numbers in (("mean", self.pixels.mean), ("std", self.pixels.std)):
            if len(numbers) not in (1, self.channels):
                raise ConfigError(f"pixels.{name}", f"found {len(numbers)} numbers for {self.channels} channels.")
        return self

    def build(self) -> "VisionTransformer":
        return VisionTransformer(self)


class VisionTransformer(nn.Module):
    """Classifies images."""

    def __init__(self, config: VisionTransformerConfig) -> None:
        super().__init__()
        self.config = config
        width, has_class = config.width, config.pooling == "cls"
        self.patch_embed = PatchEmbedding(config.patch_size, config.channels, width)
        self.embed_positions = config.position.build(config.grid, width, has_class)
        self.cls_token = nn.Parameter(0.02 * torch.randn(width)) if has_class else None
        self.register_tokens = Registers(config.registers, width) if config.registers else None
        self.dropout = nn.Dropout(config.dropout)
        self.encoder = Stack(config.encoder, width, NoPositionConfig(), causal=False)
        representation_size = config.representation_size
        self.pre_logits = None if representation_size is None else Pooler(width, representation_size)
        self.head = ClassificationHead(len(config.labels), representation_size or width) if config.labels else None

    @property
    def device(self) -> torch.device:
        return self.patch_embed.proj.weight.device

    def forward(self, pixels: Tensor, *, attention_hook: AttentionHook | None = None) -> Tensor:
        """The logits of the classes; the image's vector if there are none.  # (batch, classes) or (batch, width)

        pixels: # (batch, channels, height, width), normalized by `config.pixels`. Height and width are any multiples
        of the patch size.
        """
        vectors = self.encode(pixels, attention_hook=attention_hook)
        has_cls = self.cls_token is not None
        return self.classify(vectors[:, 0] if has_cls else vectors[:, self.config.registers :].mean(dim=1))

    def classify(self, x: Tensor) -> Tensor:
        """The logits of the classes for some vectors; the vectors if there are none.  # (…, width) → (…, classes)"""
        for module in (self.pre_logits, self.head):
            x = x if module is None else module(x)
        return x

    def encode(self, pixels: Tensor, *, attention_hook: AttentionHook | None = None) -> Tensor:
        """The encoder's output: the CLS token if there is one, the registers, and the patches row by row.

        pixels: # (batch, channels, height, width); gives (batch, tokens, width)
        """
        patches = self.patch_embed(pixels)  # (batch, rows, columns, width)
        batch, rows, columns, _ = patches.shape
        parts = [(patches + self.embed_positions(rows, columns).to(patches.dtype)).flatten(1, 2)]
        if self.register_tokens is not None:
            parts.insert(0, self.register_tokens.weight.expand(batch, -1, -1))
        if self.cls_token is not None:
            parts.insert(0, self.embed_positions.add_position(self.cls_token).expand(batch, 1, -1))
        x = self.dropout(torch.cat(parts, dim=1))
        context = Context(x[..., 0], attention_hook=attention_hook)  # only their number and device matter
        vectors: Tensor = self.encoder(x, context, self.encoder.states())
        return vectors


class PatchEmbedding(nn.Module):
    """Cuts images into patches and projects each to a vector.

    The weight, viewed as (width, channels, patch_size, patch_size), is that of a convolution with stride patch_size.
    """

    def __init__(self, patch_size: int, channels: int, width: int) -> None:
        super().__init__()
        self.patch_size, self.channels = patch_size, channels
        self.proj = nn.Linear(channels * patch_size * patch_size, width)
        nn.init.xavier_uniform_(self.proj.weight)
        nn.init.zeros_(self.proj.bias)

    def forward(self, pixels: Tensor) -> Tensor:
        """pixels: # (batch, channels, height, width); gives (batch, rows, columns, width)"""
        self._check(pixels)
        batch, channels, height, width = pixels.shape
        size = self.patch_size
        cut = pixels.to(self.proj.weight.dtype).reshape(batch, channels, height // size, size, width // size, size)
        embedded: Tensor = self.proj(cut.permute(0, 2, 4, 1, 3, 5).flatten(3))
        return embedded

    def _check(self, pixels: Tensor) -> None:
        if pixels.dim() != 4 or pixels.shape[1] != self.channels or not pixels.dtype.is_floating_point:
            raise UserError(
                f"Pixels must be floating-point numbers of shape (batch, {self.channels}, height, width); "
                f"found {tuple(pixels.shape)} of {pixels.dtype}."
            )
        height, width = pixels.shape[2:]
        if height % self.patch_size or width % self.patch_size or not height or not width:
            raise UserError(
                f"An image of {_times((height, width))} pixels does not divide into patches of {self.patch_size}; "
                "resize it to multiples of that."
            )


class Registers(nn.Module):
    """Register tokens: learned inputs that belong to no patch."""

    no_weight_decay: ClassVar = ("weight",)

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.02 * torch.randn(count, width))  # (registers, width)


class Grid(nn.Module):
    """Positional encodings of patches; the CLS token has none unless a subclass adds one."""

    def forward(self, rows: int, columns: int) -> Tensor:
        """The encoding of each patch.  # (rows, columns, width)"""
        raise NotImplementedError

    def add_position(self, cls_token: Tensor) -> Tensor:
        """The CLS token with its position.  # (width,)"""
        return cls_token


class LearnedGrid(Grid):
    """A learned vector per patch. For a grid of another size they are interpolated, as the pixels of an image."""

    no_weight_decay: ClassVar = ("weight",)

    def __init__(self, size: Size, width: int, has_cls: bool) -> None:
        super().__init__()
        self.size, self.cls_rows = size, int(has_cls)
        self.weight = nn.Parameter(
            torch.randn(self.cls_rows + size[0] * size[1], width) * 0.02
        )  # (class + patches, width)

    def forward(self, rows: int, columns: int) -> Tensor:
        encodings: Tensor = self.weight[self.cls_rows :].unflatten(0, self.size)  # (rows, columns, width)
        if (rows, columns) == self.size:
            return encodings
        images = encodings.permute(2, 0, 1)[None]  # (1, width, rows, columns)
        resized = functional.interpolate(images, (rows, columns), mode="bicubic", align_corners=False)
        return resized[0].permute(1, 2, 0)

    def add_position(self, cls_token: Tensor) -> Tensor:
        return cls_token + self.weight[0]


class SinusoidalGrid(Grid):
    """Sinusoids of the row beside those of the column, for grids of any size."""

    def __init__(self, width: int, theta: float) -> None:
        super().__init__()
        self.side = Sinusoidal(width // 2, theta)

    def forward(self, rows: int, columns: int) -> Tensor:
        device = self.side.frequencies.values.device
        row, column = (self.side.encode(torch.arange(count, device=device)) for count in (rows, columns))
        return torch.cat((row[:, None].expand(-1, columns, -1), column[None].expand(rows, -1, -1)), dim=-1)


def _channel_tensor(numbers: tuple[float, ...], like: Tensor) -> Tensor:
    """Numbers as a tensor on the device of another.  # (numbers, 1, 1)

    They are filled in one by one: a copy from the host cannot be captured in a CUDA graph.
    """
    return torch.stack([like.new_full((1, 1), number) for number in numbers])


def _times(size: Size) -> str:
    return f"{size[0]} × {size[1]}"
