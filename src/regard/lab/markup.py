"""Text inside HTML and SVG."""

import html
import re

_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
"""Characters that neither HTML nor XML may contain; an untrained model generates any of them."""


def escape(text: str) -> str:
    """A text for an element or a quoted attribute."""
    return html.escape(_CONTROL.sub("\N{REPLACEMENT CHARACTER}", text), quote=True)
