"""The limits of a server, and refusing what exceeds them."""

from collections.abc import Sequence
from dataclasses import dataclass

from regard.errors import UserError


class LimitError(UserError):
    """The request exceeds a limit of this server."""


@dataclass(frozen=True)
class Limits:
    """What one request may ask for, and how many may wait."""

    body_bytes: int = 1 << 20
    """Bytes of a request's body."""
    image_body_bytes: int = 16 << 20
    """Bytes of the body of a request with images."""
    image_pixels: int = 1 << 25
    """Pixels of an image: a small file can have very many."""
    total_image_pixels: int = 1 << 27
    """Pixels of all images of a request."""
    items: int = 128
    """Texts or images in a request."""
    characters: int = 20_000
    """Characters of a text."""
    total_characters: int = 200_000
    """Characters of all texts of a request."""
    new_tokens: int = 2048
    """Tokens of an output."""
    beam_size: int = 16
    """Beams of a search, and outputs of an input."""
    waiting: int = 512
    """Requests to a model that wait while others are worked on."""
    threads: int = 64
    """Requests to a model that are worked on together."""
    seconds: float = 120.0
    """How long a request may wait and take."""
    header_bytes: int = 32 << 10
    """Bytes of a request's line and headers."""
    header_seconds: float = 30.0
    """How long they may take to arrive."""
    send_seconds: float = 60.0
    """How long a client may go without reading anything of its response."""
    keep_alive_seconds: float = 75.0
    """How long a connection stays open between two requests."""
    connections: int = 1024
    """Open connections."""

    def check_texts(self, field: str, texts: Sequence[str]) -> None:
        """Refuse too many texts, or too long ones. `field` is where the request has them."""
        self.check_items(field, len(texts))
        for number, text in enumerate(texts):
            if len(text) > self.characters:
                where = field if len(texts) == 1 else f"{field}[{number}]"
                raise LimitError(
                    f"{where} has {len(text):,} characters, and this server takes {self.characters:,}; send parts of "
                    "it in several requests."
                )
        if (total := sum(map(len, texts))) > self.total_characters:
            raise LimitError(
                f"{field} has {total:,} characters in all, and this server takes {self.total_characters:,}; send them "
                "in several requests."
            )

    def check_items(self, field: str, count: int) -> None:
        if not count:
            raise UserError(f"{field} is empty; give at least one.")
        if count > self.items:
            raise LimitError(f"{field} has {count:,} items, and this server takes {self.items}; send several requests.")

    def check_search(self, beam_size: int | None, outputs: int | None) -> None:
        """Refuse a beam that is too large, or too many outputs."""
        for name, number in (("beam_size", beam_size), ("nbest", outputs)):
            if number is not None and number > self.beam_size:
                raise LimitError(f"{name} is {number}, and this server takes at most {self.beam_size}.")

    def check_new_tokens(self, field: str, count: int) -> None:
        if count > self.new_tokens:
            raise LimitError(f"{field} is {count:,}, and this server generates at most {self.new_tokens:,} tokens.")
