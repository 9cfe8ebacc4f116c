"""Data augmentation for images: random crop, horizontal flip, random erasing, mixup and CutMix.

Each is one operation over the batch, on the batch's device. Random numbers come from the device's default generator
unless one is given; its state is part of a checkpoint, so a resumed run sees the same augmentations as an uninterrupted
one. Nothing synchronizes with the device and no shape depends on random numbers, so all of it can be captured in a CUDA
graph.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from pydantic import Field
from torch import Generator, Tensor

from regard.config import Config

_MIN_ERASED, _MAX_ERASED = 0.02, 1 / 3
"""The fraction of an image's area that is erased, if anything is."""
_LOG_ASPECT_RATIO = math.log(3.3)
"""The largest aspect ratio of the erased rectangle, as a logarithm."""


class AugmentConfig(Config):
    """How training images are augmented; by default not at all."""

    crop: int = Field(default=0, ge=0, le=10_000)
    """Random crop: an image is padded with this many black pixels on each side and cut to its size at a random
    offset."""
    flip: float = Field(default=0.0, ge=0, le=1)
    """The probability of a horizontal flip: 0.5 where left and right are interchangeable, as for clothes; 0 for digits
    and letters."""
    erase: float = Field(default=0.0, ge=0, le=1)
    """The probability of random erasing: a rectangle is filled with the image's mean (Zhong et al. 2020)."""
    mixup: float = Field(default=0.0, ge=0, le=1e3)
    """α of mixup (Zhang et al. 2018): two images are blended, with a weight drawn from Beta(α, α)."""
    cutmix: float = Field(default=0.0, ge=0, le=1e3)
    """α of CutMix (Yun et al. 2019): a rectangle of one image comes from another. With mixup too, each gets half."""
    mix_probability: float = Field(default=1.0, ge=0, le=1)
    """The fraction of images that are mixed, if mixup or cutmix is on."""

    def apply(self, pixels: Tensor, labels: Tensor, generator: Generator | None = None) -> "Augmented":
        """An augmented batch.

        pixels: # (rows, channels, height, width); labels: # (rows,), -1 for empty rows, which come last

        uint8 stays uint8, except that mixup converts to floats from 0 to 1. In a CUDA graph, a generator other than the
        device's default must be registered with the graph.
        """
        rng = _RowRng(len(labels), pixels.device, generator)
        if self.crop or self.flip:
            down, right = (rng.integers(2 * self.crop + 1) - self.crop for _ in range(2))
            pixels = shift_and_flip(pixels, down, right, rng.bernoulli(self.flip))
        if self.erase:
            pixels = erase(pixels, _erased_box(rng, self.erase, pixels.shape[2], pixels.shape[3]))
        if not ((self.mixup or self.cutmix) and self.mix_probability):
            return Augmented(pixels, labels, labels, torch.ones_like(labels, dtype=torch.float32))
        mixed = rng.bernoulli(self.mix_probability)
        cut = rng.bernoulli(0.5 if self.mixup else 1.0) if self.cutmix else torch.zeros_like(mixed)
        weight = torch.where(mixed & ~cut, rng.beta(self.mixup), 1.0) if self.mixup else None
        box = _cutmix_box(rng, mixed & cut, self.cutmix, pixels.shape[2], pixels.shape[3]) if self.cutmix else None
        return mix(pixels, labels, weight, box)


@dataclass(frozen=True)
class Augmented:
    """An augmented batch. Its loss is `weight` times that of `labels` plus (1 - `weight`) times that of
    `mixed_labels`."""

    pixels: Tensor  # (rows, channels, height, width)
    labels: Tensor  # (rows,): -1 for an empty row
    mixed_labels: Tensor  # (rows,): the labels of the images that were mixed in; `labels` where none was
    weight: Tensor  # (rows,): the weight of each image's own label, float32


class Box(NamedTuple):
    """A rectangle in each image; `bottom` and `right` are exclusive.  # (rows,) each"""

    top: Tensor
    bottom: Tensor
    left: Tensor
    right: Tensor

    @property
    def area(self) -> Tensor:
        """In pixels.  # (rows,)"""
        return (self.bottom - self.top) * (self.right - self.left)

    def inside(self, height: int, width: int) -> Tensor:
        """A mask of the pixels inside.  # (rows, 1, height, width)"""
        y, x = (torch.arange(side, device=self.top.device) for side in (height, width))
        rows = (y >= self.top[:, None]) & (y < self.bottom[:, None])  # (rows, height)
        columns = (x >= self.left[:, None]) & (x < self.right[:, None])  # (rows, width)
        return (rows[:, :, None] & columns[:, None, :])[:, None]


def shift_and_flip(pixels: Tensor, down: Tensor, right: Tensor, flipped: Tensor) -> Tensor:
    """Cut each image out of a black background with a window moved down and right, and flip some of them.

    pixels: # (rows, channels, height, width); down, right: # (rows,), integers that may be negative; flipped: # (rows,)
    """
    rows, channels, height, width = pixels.shape
    columns = torch.arange(width, device=pixels.device)
    x = torch.where(flipped[:, None], columns.flip(0), columns) + right[:, None]  # (rows, width)
    y = torch.arange(height, device=pixels.device) + down[:, None]  # (rows, height)
    inside = ((y >= 0) & (y < height))[:, :, None] & ((x >= 0) & (x < width))[:, None, :]  # (rows, height, width)
    offset = y.clamp(0, height - 1)[:, :, None] * width + x.clamp(0, width - 1)[:, None, :]
    moved = pixels.flatten(2).gather(2, offset.flatten(1)[:, None].expand(-1, channels, -1))
    return moved.view(rows, channels, height, width).masked_fill(~inside[:, None], 0)


def erase(pixels: Tensor, box: Box) -> Tensor:
    """Fill a rectangle of each image with the mean of each of its channels."""
    exact = pixels if pixels.is_floating_point() else pixels.float()
    mean = exact.mean(dim=(2, 3), keepdim=True)
    mean = mean if pixels.is_floating_point() else mean.round()
    return torch.where(box.inside(pixels.shape[2], pixels.shape[3]), mean.to(pixels.dtype), pixels)


def mix(pixels: Tensor, labels: Tensor, weight: Tensor | None = None, box: Box | None = None) -> Augmented:
    """Mix each image with the one in the next row, the last with the first; batches are shuffled, so any will do.

    Inside the box (CutMix) pixels come from the other image; outside it, each pixel is `weight` times its own plus (1 -
    `weight`) times the other's (mixup). In each row one of the two does nothing: the box is empty, or the weight is 1.
    Empty rows, which come last, are left unchanged.  weight: # (rows,)
    """
    real = labels >= 0
    row = torch.arange(len(labels), device=labels.device)
    next_row = torch.where(row + 1 < real.sum(), row + 1, 0)
    partner = torch.where(real, next_row, row)
    if weight is not None and not pixels.is_floating_point():
        pixels = pixels.float() / 255
    others = pixels.index_select(0, partner)
    height, width = pixels.shape[2:]
    total_weight = torch.ones_like(labels, dtype=torch.float32) if weight is None else weight
    if box is not None:
        pixels = torch.where(box.inside(height, width), others, pixels)
        total_weight = total_weight * (1 - box.area / (height * width))
    if weight is not None:
        factor = weight.to(pixels.dtype)[:, None, None, None]
        pixels = factor * pixels + (1 - factor) * others
    return Augmented(pixels, labels, labels[partner], total_weight)


def symmetric_beta(alpha: float, first: Tensor, second: Tensor) -> Tensor:
    """Samples of Beta(α, α) from two uniform random numbers between 0 and 1.

    Student's t with 2α degrees of freedom has a closed form in two uniform numbers (Bailey 1994), and t/√(2α + t²) is a
    symmetric beta between -1 and 1 (Devroye 1996). Unlike rejection sampling, it never discards a draw.
    """
    power = (1 - first).pow(1 / alpha)
    cosine = torch.cos(2 * math.pi * second)
    return 0.5 + 0.5 * cosine / torch.sqrt(power / (1 - power) + cosine.square())


class _RowRng:
    """Random numbers, one per row."""

    def __init__(self, rows: int, device: torch.device, generator: Generator | None) -> None:
        self.rows, self.device, self.generator = rows, device, generator

    def uniform(self) -> Tensor:
        """Numbers in [0, 1).  # (rows,)"""
        return torch.rand(self.rows, device=self.device, generator=self.generator)

    def bernoulli(self, p: float) -> Tensor:
        """True with probability `p`.  # (rows,)"""
        return self.uniform() < p

    def integers(self, high: Tensor | int) -> Tensor:
        """Integers in [0, high).  # (rows,)"""
        product = (self.uniform() * high).long()
        return product.clamp(max=high - 1) if isinstance(high, int) else torch.minimum(product, high - 1)

    def beta(self, alpha: float) -> Tensor:
        return symmetric_beta(alpha, self.uniform(), self.uniform())


def _erased_box(rng: _RowRng, p: float, height: int, width: int) -> Box:
    """A random rectangle inside each image with probability `p`, otherwise an empty one."""
    area = height * width * (_MIN_ERASED + (_MAX_ERASED - _MIN_ERASED) * rng.uniform())
    aspect_ratio = torch.exp(_LOG_ASPECT_RATIO * (2 * rng.uniform() - 1))
    box_height = torch.sqrt(area * aspect_ratio).round().long().clamp(1, height)
    box_width = torch.sqrt(area / aspect_ratio).round().long().clamp(1, width)
    top, left = rng.integers(height - box_height + 1), rng.integers(width - box_width + 1)
    erased = rng.bernoulli(p)
    return Box(top, top + box_height * erased, left, left + box_width * erased)


def _cutmix_box(rng: _RowRng, cut: Tensor, alpha: float, height: int, width: int) -> Box:
    """A rectangle of the image's aspect ratio around a random center, clipped to the image; empty where not `cut`."""
    scale = torch.sqrt(1 - rng.beta(alpha)) * cut
    box_height, box_width = (height * scale).long(), (width * scale).long()
    top, left = rng.integers(height) - box_height // 2, rng.integers(width) - box_width // 2
    return Box(
        top.clamp(min=0),
        (top + box_height).clamp(max=height),
        left.clamp(min=0),
        (left + box_width).clamp(max=width),
    )
