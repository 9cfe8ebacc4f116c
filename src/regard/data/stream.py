"""Text that appears token by token.

A character may need several tokens, and a word may be spelled differently once its next token is there. So text is
given out only when later tokens can no longer change it: no half characters, and nothing that may be the beginning of a
stop string. Put together, the pieces are what decoding everything at once gives, as long as the tokens make up text;
where their bytes do not, the two may show different signs for what cannot be read.
"""

from collections.abc import Sequence

from regard.data.tokenizer import TextTokenizer

_OPEN = "�"
_BEFORE = 8
"""Tokens that are enough to know what comes between them and the next."""


class TextStream:
    """Takes the tokens of one text as they come and gives its pieces out.

    Where one of `stops` appears, the text ends before it and `stopped` becomes true. `before` are the last tokens of
    what it goes on with, which is not given out: whether a blank comes next, many tokenizers tell from them alone.
    """

    def __init__(self, tokenizer: TextTokenizer, stops: Sequence[str] = (), before: Sequence[int] = ()) -> None:
        self.tokenizer = tokenizer
        self.stops = [stop for stop in stops if stop]
        self.stopped = False
        self.text = ""
        """What was given out so far."""
        self._ids = list(before[-_BEFORE:])
        self._settled = len(self._ids)  # tokens before this are decoded for good
        self._context = 0  # from here on they are decoded again, so that what follows is spelled right
        self._held = ""  # decoded, but not given out yet

    def add(self, ids: Sequence[int]) -> str:
        """The text that these further tokens make certain."""
        if self.stopped:
            return ""
        for number in ids:
            self._ids.append(int(number))
            self._held += self._new()
            if self._stop():
                break
        return self._give(self._held if self.stopped else self._certain())

    def finish(self) -> str:
        """What was held back, now that nothing follows."""
        if self.stopped:
            return ""
        before = self.tokenizer.decode(self._ids[self._context : self._settled])
        whole = self.tokenizer.decode(self._ids[self._context :])
        self._held += whole[len(before) :]
        self._settled = self._context = len(self._ids)
        self._stop()
        return self._give(self._held)

    def _new(self) -> str:
        """The text of the tokens not settled yet, if it ends with a whole character."""
        before = self.tokenizer.decode(self._ids[self._context : self._settled])
        whole = self.tokenizer.decode(self._ids[self._context :])
        if len(whole) <= len(before) or whole.endswith(_OPEN):
            return ""
        self._context, self._settled = self._settled, len(self._ids)
        return whole[len(before) :]

    def _stop(self) -> bool:
        """Cut what is held before the first stop string in it."""
        places = [place for stop in self.stops if (place := self._held.find(stop)) >= 0]
        if places:
            self._held, self.stopped = self._held[: min(places)], True
        return self.stopped

    def _certain(self) -> str:
        """What is held, up to where a stop string may have begun."""
        longest = max((len(stop) for stop in self.stops), default=1) - 1
        for length in range(min(longest, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-length:]) for stop in self.stops):
                return self._held[:-length]
        return self._held

    def _give(self, piece: str) -> str:
        self._held = self._held[len(piece) :]
        self.text += piece
        return piece
