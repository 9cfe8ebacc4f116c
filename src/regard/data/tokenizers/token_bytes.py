"""The bytes of tokens. Those of a byte-level tokenizer may be parts of a character, which only their bytes tell."""

import json
import re
from functools import lru_cache

from regard.data.tokenizers.tokenizer import TextTokenizer

_PRINTED = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_BYTES = {chr(byte): byte for byte in _PRINTED}
_BYTES |= {chr(256 + number): byte for number, byte in enumerate(sorted(set(range(256)) - set(_PRINTED)))}
"""The bytes that the characters of byte-level tokens stand for (Radford et al. 2019)."""


@lru_cache(maxsize=4)
def token_bytes(tokenizer: TextTokenizer) -> tuple[bytes, ...]:
    """The bytes that each token adds to a text that another token precedes."""
    ids = tokenizer.ids
    pieces = [b""] * tokenizer.vocab_size
    names = [tokenizer.tokenizer.id_to_token(token) or "" for token in ids]
    shown = tokenizer.decode_batch([[token] for token in ids])
    byte_level = '"ByteLevel"' in json.dumps(json.loads(tokenizer.json)["decoder"])
    before = next((token for token, text in zip(ids, shown, strict=True) if text.strip()), ids[0])
    alone, both = tokenizer.decode([before]), tokenizer.decode_batch([[before, token] for token in ids])
    for token, name, text, joined in zip(ids, names, shown, both, strict=True):
        if not text and joined == alone:
            continue  # a special token, which is not shown
        if byte_level and token not in tokenizer.special_ids and all(letter in _BYTES for letter in name):
            pieces[token] = bytes(_BYTES[letter] for letter in name)
        elif byte := re.fullmatch(r"<0x([0-9A-Fa-f]{2})>", name):
            pieces[token] = bytes([int(byte[1], 16)])
        else:
            pieces[token] = (joined[len(alone) :] if joined.startswith(alone) else text).encode()
    return tuple(pieces)
