"""Pictures changed a little each time they are seen, so that what is learnt of them is what they show.

Cut out at a random place, mirrored, with a part erased, mixed with another: each is one operation over a whole batch,
on the device the batch is on. Random numbers come from that device's own generator, unless one is given. They are part
of a checkpoint, so a run that goes on sees the same changes as one never stopped. Nothing is asked of the device and no
shape depends on what is drawn, so all of it can be recorded in a CUDA graph.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from pydantic import Field
from torch import Generator, Tensor

from regard.config import Config

_LEAST_ERASED, _MOST_ERASED = 0.02, 1 / 3
"""How much of a picture is erased, where something is."""
_SLENDER = math.log(3.3)
"""How much longer than wide such a part can be, or wider than long; as a logarithm."""


class AugmentConfig(Config):
    """What is done to pictures in training; by default nothing."""

    crop: int = Field(default=0, ge=0)
    """How many pixels a picture is moved at most, up or down and to either side. What comes in is black.

    The same as to lay so many black pixels around it and to cut its size out of that at a random place.
    """
    flip: float = Field(default=0.0, ge=0, le=1)
    """The share of pictures that are mirrored, left to right. 0.5 where both sides are alike, as of clothes; 0 for
    digits and letters."""
    erase: float = Field(default=0.0, ge=0, le=1)
    """The share of pictures in which a rectangle is painted over with the picture's mean (Zhong et al. 2020)."""
    mixup: float = Field(default=0.0, ge=0)
    """α of mixup (Zhang et al. 2018): two pictures are laid over each other, in a proportion from Beta(α, α)."""
    cutmix: float = Field(default=0.0, ge=0)
    """α of CutMix (Yun et al. 2019): a rectangle of one picture comes from another. Beside mixup each gets half."""
    mixed: float = Field(default=1.0, ge=0, le=1)
    """The share of pictures that are mixed, where mixup or cutmix is on."""

    def apply(self, pixels: Tensor, labels: Tensor, generator: Generator | None = None) -> "Augmented":
        """A batch, changed.  pixels: # (rows, channels, height, width); labels: # (rows,), -1 for empty rows at the end

        Bytes stay bytes, but for mixup, which makes fractions from 0 to 1 of them. In a CUDA graph a generator must
        be registered with the graph; the device's own is.
        """
        draw = _Draw(len(labels), pixels.device, generator)
        if self.crop or self.flip:
            down, right = (draw.below(2 * self.crop + 1) - self.crop for _ in range(2))
            pixels = move(pixels, down, right, draw.chance(self.flip))
        if self.erase:
            pixels = erase(pixels, _erased_box(draw, self.erase, pixels.shape[2], pixels.shape[3]))
        if not ((self.mixup or self.cutmix) and self.mixed):
            return Augmented(pixels, labels, labels, torch.ones_like(labels, dtype=torch.float32))
        chosen = draw.chance(self.mixed)
        cut = draw.chance(0.5 if self.mixup else 1.0) if self.cutmix else torch.zeros_like(chosen)
        share = torch.where(chosen & ~cut, draw.beta(self.mixup), 1.0) if self.mixup else None
        box = _cut_box(draw, chosen & cut, self.cutmix, pixels.shape[2], pixels.shape[3]) if self.cutmix else None
        return mix(pixels, labels, share, box)


@dataclass(frozen=True)
class Augmented:
    """A changed batch. Its loss is `share` times that of `labels` and the rest that of `others`."""

    pixels: Tensor  # (rows, channels, height, width)
    labels: Tensor  # (rows,): what the picture shows; -1 for an empty row
    others: Tensor  # (rows,): what was mixed in shows; the same as `labels` where nothing was
    share: Tensor  # (rows,): how much of the picture is its own, in float32


class Box(NamedTuple):
    """A rectangle in each picture, from the first row and column to those behind the last.  # (rows,) each"""

    top: Tensor
    bottom: Tensor
    left: Tensor
    right: Tensor

    @property
    def area(self) -> Tensor:
        """In pixels.  # (rows,)"""
        return (self.bottom - self.top) * (self.right - self.left)

    def inside(self, height: int, width: int) -> Tensor:
        """Which pixels are in it.  # (rows, 1, height, width)"""
        y, x = (torch.arange(side, device=self.top.device) for side in (height, width))
        rows = (y >= self.top[:, None]) & (y < self.bottom[:, None])  # (rows, height)
        columns = (x >= self.left[:, None]) & (x < self.right[:, None])  # (rows, width)
        return (rows[:, :, None] & columns[:, None, :])[:, None]


def move(pixels: Tensor, down: Tensor, right: Tensor, flipped: Tensor) -> Tensor:
    """What a window shows that is moved down and right over black ground, then mirrored or not.

    pixels: # (rows, channels, height, width); down, right: # (rows,) whole numbers, which may be below 0; flipped:
    # (rows,)
    """
    rows, channels, height, width = pixels.shape
    columns = torch.arange(width, device=pixels.device)
    x = torch.where(flipped[:, None], columns.flip(0), columns) + right[:, None]  # (rows, width)
    y = torch.arange(height, device=pixels.device) + down[:, None]  # (rows, height)
    seen = ((y >= 0) & (y < height))[:, :, None] & ((x >= 0) & (x < width))[:, None, :]  # (rows, height, width)
    place = y.clamp(0, height - 1)[:, :, None] * width + x.clamp(0, width - 1)[:, None, :]
    found = pixels.flatten(2).gather(2, place.flatten(1)[:, None].expand(-1, channels, -1))
    return found.view(rows, channels, height, width).masked_fill(~seen[:, None], 0)


def erase(pixels: Tensor, box: Box) -> Tensor:
    """Paint a rectangle of each picture over with the mean of each of its channels."""
    exact = pixels if pixels.is_floating_point() else pixels.float()
    mean = exact.mean(dim=(2, 3), keepdim=True)
    mean = mean if pixels.is_floating_point() else mean.round()
    return torch.where(box.inside(pixels.shape[2], pixels.shape[3]), mean.to(pixels.dtype), pixels)


def mix(pixels: Tensor, labels: Tensor, share: Tensor | None = None, box: Box | None = None) -> Augmented:
    """Mix each picture with the one in the next row, the last with the first; batches are shuffled, so any will do.

    What is in the box comes from the other picture; outside it `share` of each pixel is its own.  share: # (rows,)

    In a row one of the two is to do nothing: the box is empty, or the share is 1. Empty rows, which stand behind the
    others, are left alone.
    """
    own = labels >= 0
    here = torch.arange(len(labels), device=labels.device)
    behind = torch.where(here + 1 < own.sum(), here + 1, 0)
    other = torch.where(own, behind, here)
    if share is not None and not pixels.is_floating_point():
        pixels = pixels.float() / 255
    theirs = pixels.index_select(0, other)
    height, width = pixels.shape[2:]
    kept = torch.ones_like(labels, dtype=torch.float32) if share is None else share
    if box is not None:
        pixels = torch.where(box.inside(height, width), theirs, pixels)
        kept = kept * (1 - box.area / (height * width))
    if share is not None:
        weight = share.to(pixels.dtype)[:, None, None, None]
        pixels = weight * pixels + (1 - weight) * theirs
    return Augmented(pixels, labels, labels[other], kept)


def symmetric_beta(alpha: float, first: Tensor, second: Tensor) -> Tensor:
    """Numbers distributed as Beta(α, α), made of two that are uniform between 0 and 1.

    Student's t with 2α degrees of freedom has a form in two uniform numbers (Bailey 1994), and t/√(2α + t²) is a
    symmetric beta between -1 and 1 (Devroye 1996). No draw is ever thrown away, as other ways do.
    """
    power = (1 - first).pow(1 / alpha)
    cosine = torch.cos(2 * math.pi * second)
    return 0.5 + 0.5 * cosine / torch.sqrt(power / (1 - power) + cosine.square())


class _Draw:
    """Random numbers, one for each row at a time."""

    def __init__(self, rows: int, device: torch.device, generator: Generator | None) -> None:
        self.rows, self.device, self.generator = rows, device, generator

    def uniform(self) -> Tensor:
        """From 0 on, below 1.  # (rows,)"""
        return torch.rand(self.rows, device=self.device, generator=self.generator)

    def chance(self, share: float) -> Tensor:
        """True for about such a share.  # (rows,)"""
        return self.uniform() < share

    def below(self, limit: Tensor | int) -> Tensor:
        """Whole numbers from 0 on, below a limit.  # (rows,)"""
        product = (self.uniform() * limit).long()
        return product.clamp(max=limit - 1) if isinstance(limit, int) else torch.minimum(product, limit - 1)

    def beta(self, alpha: float) -> Tensor:
        return symmetric_beta(alpha, self.uniform(), self.uniform())


def _erased_box(draw: _Draw, share: float, height: int, width: int) -> Box:
    """A rectangle of any area and proportions allowed, wholly inside; empty in pictures that keep all of theirs."""
    area = height * width * (_LEAST_ERASED + (_MOST_ERASED - _LEAST_ERASED) * draw.uniform())
    slender = torch.exp(_SLENDER * (2 * draw.uniform() - 1))
    tall = torch.sqrt(area * slender).round().long().clamp(1, height)
    wide = torch.sqrt(area / slender).round().long().clamp(1, width)
    top, left = draw.below(height - tall + 1), draw.below(width - wide + 1)
    erased = draw.chance(share)
    return Box(top, top + tall * erased, left, left + wide * erased)


def _cut_box(draw: _Draw, cut: Tensor, alpha: float, height: int, width: int) -> Box:
    """A rectangle of the picture's proportions around a random middle, without what is beyond the edges; or none."""
    side = torch.sqrt(1 - draw.beta(alpha)) * cut
    tall, wide = (height * side).long(), (width * side).long()
    top, left = draw.below(height) - tall // 2, draw.below(width) - wide // 2
    return Box(top.clamp(min=0), (top + tall).clamp(max=height), left.clamp(min=0), (left + wide).clamp(max=width))
