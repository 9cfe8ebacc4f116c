"""Streaming: decoding text token by token.

A character may need several tokens, and a token's text may change once the next token is known. So text is emitted only
when later tokens can no longer change it: no incomplete characters, and nothing that may be the beginning of a stop
string. Concatenated, the pieces equal decoding everything at once, as long as the tokens are valid text; for invalid
bytes the replacement characters may differ.
"""

from collections.abc import Sequence

from regard.data.tokenizers.tokenizer import TextTokenizer

_REPLACEMENT = "�"
_CONTEXT = 8
"""Tokens that determine whether a space comes before the next one."""


class TextStreamer:
    """Receives the tokens of one text and emits its text in pieces.

    The text ends before the stop string of `stops` that is complete first (of two that end together, the longer one),
    and `stopped` becomes true, regardless of token boundaries. `prompt` has the last tokens of the text that is
    continued; they are not emitted, but many tokenizers need them to know whether a space follows.
    """

    def __init__(self, tokenizer: TextTokenizer, stops: Sequence[str] = (), prompt: Sequence[int] = ()) -> None:
        self.tokenizer = tokenizer
        self.stops = [stop for stop in stops if stop]
        self.stopped = False
        self.text = ""
        """The text emitted so far."""
        self._ids = list(prompt[-_CONTEXT:])
        self._settled = len(self._ids)  # tokens before this index are decoded for good
        self._context = 0  # tokens from this index on are decoded again as the context of later ones
        self._pending = ""  # decoded, but not emitted yet

    def add(self, ids: Sequence[int]) -> str:
        """Add tokens; return the text that can no longer change."""
        if self.stopped:
            return ""
        for token in ids:
            self._ids.append(int(token))
            self._pending += self._decode_new()
            if self._stop():
                break
        return self._emit(self._pending if self.stopped else self._certain())

    def finish(self) -> str:
        """The text that was held back, now that no token follows."""
        if self.stopped:
            return ""
        before = self.tokenizer.decode(self._ids[self._context : self._settled])
        decoded = self.tokenizer.decode(self._ids[self._context :])
        self._pending += decoded[len(before) :]
        self._settled = self._context = len(self._ids)
        self._stop()
        return self._emit(self._pending)

    def _decode_new(self) -> str:
        """The text of the tokens that are not settled yet, if it ends with a complete character."""
        before = self.tokenizer.decode(self._ids[self._context : self._settled])
        decoded = self.tokenizer.decode(self._ids[self._context :])
        if len(decoded) <= len(before) or decoded.endswith(_REPLACEMENT):
            return ""
        self._context, self._settled = self._settled, len(self._ids)
        return decoded[len(before) :]

    def _stop(self) -> bool:
        """Cut the pending text before the stop string in it that is complete first."""
        found = [(start + len(stop), start) for stop in self.stops if (start := self._pending.find(stop)) >= 0]
        if found:
            _, start = min(found)
            self._pending, self.stopped = self._pending[:start], True
        return self.stopped

    def _certain(self) -> str:
        """The pending text up to where a stop string may have begun."""
        max_length = max((len(stop) for stop in self.stops), default=1) - 1
        for length in range(min(max_length, len(self._pending)), 0, -1):
            if any(stop.startswith(self._pending[-length:]) for stop in self.stops):
                return self._pending[:-length]
        return self._pending

    def _emit(self, piece: str) -> str:
        self._pending = self._pending[len(piece) :]
        self.text += piece
        return piece
