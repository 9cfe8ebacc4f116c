"""`POST /v1/fill`."""

from collections.abc import Callable, Sequence
from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from regard.errors import UserError
from regard.serve.api.middleware import note
from regard.serve.api.schema import Body, ModelName, Texts, as_list, first_or_all
from regard.serve.api.service import Service
from regard.serve.limits import LimitError
from regard.task.json_records import guess_records
from regard.task.masked_lm.pipeline import MASK, FillMask

MAX_ROWS = 1024
"""Rows that a request makes the model read: one for each mask, and for several tokens per mask one for each beam."""
_BEAMS = 8


class FillRequest(Body):
    """Texts with masks to fill."""

    text: Texts = Field(
        description=f"A text, or a list of texts, with {MASK} in place of words.",
        examples=[f"The {MASK} ate the mouse."],
    )
    model: ModelName = None
    top: int = Field(5, ge=1, le=1000, description="How many guesses for each mask, most likely first.")
    tokens_per_mask: int = Field(1, ge=1, le=32, description="How many tokens a mask stands for.")
    pieces: bool = Field(False, description="Guess tokens as the vocabulary spells them, and not only whole words.")


class MaskGuess(BaseModel):
    """A guess for a mask, and its probability."""

    text: str = Field(examples=["cat"])
    probability: float = Field(examples=[0.62])


class FilledText(BaseModel):
    """A text with every mask filled by the best guess, and the guesses for each mask."""

    text: str = Field(examples=["The cat ate the mouse."])
    masks: list[list[MaskGuess]]


class FillResponse(BaseModel):
    """The filled texts: one for a text, a list for a list."""

    model: str
    filled: FilledText | list[FilledText]


def fill_route(service: Service) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/fill")
    async def fill(request: Request, body: FillRequest) -> FillResponse:
        """Fill the masked words of a text, or of a list of texts."""
        texts = as_list(body.text)
        service.limits.check_texts("text", texts)
        _check_masks(texts, body)
        model = service.models.find(body.model, "fill")
        note(request, model=model.name, items=len(texts))
        options = {"top": body.top, "tokens_per_mask": body.tokens_per_mask, "pieces": body.pieces}

        def guess(filler: FillMask, texts: Sequence[str], progress: Callable[[int], None]) -> Sequence[Any]:
            found: Sequence[Any] = filler.fill(list(texts), progress=progress, **options)
            return found

        found = await service.compute_batched(request, model, ("fill", *options.values()), texts, guess)
        filled = []
        for text, guesses in zip(texts, found, strict=True):
            best = model.pipeline.filled(text, guesses) if all(guesses) else text
            filled.append(FilledText(text=best, masks=guess_records(guesses)))  # type: ignore[arg-type]
        return FillResponse(model=model.name, filled=first_or_all(body.text, filled))

    return router


def _check_masks(texts: list[str], body: FillRequest) -> None:
    for number, text in enumerate(texts):
        if MASK not in text:
            where = "text" if len(texts) == 1 else f"text[{number}]"
            raise UserError(f"{where} has no mask; write {MASK} where a word is missing.")
    masks = sum(text.count(MASK) for text in texts)
    beams = 1 if body.tokens_per_mask == 1 else body.tokens_per_mask * max(body.top, _BEAMS)
    if (rows := masks * beams) > MAX_ROWS:
        raise LimitError(
            f"{masks:,} masks of {body.tokens_per_mask} tokens with {body.top} guesses take {rows:,} passes, and this "
            f"server computes {MAX_ROWS:,} for a request; send fewer masks, or lower tokens_per_mask or top."
        )
