"""Sentences into words as the Penn Treebank has them: punctuation stands apart, and so do `n't` and `'s`."""

import re

_CONTRACTION = r"(?:n['’]t|['’](?:s|re|ve|ll|d|m))(?![\w'’])"
_PIECES = re.compile(
    rf"""
    {_CONTRACTION}
    | \.\.\.|--
    | \$?\d+(?:[.,:/]\d+)*%?          # 1,000.50 and 9:30
    | (?:[A-Za-z]\.){{2,}}            # U.S.
    | (?:Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|Co|Corp|Inc|Ltd|No|vs|etc)\.(?=\s)
    | \w+(?:[-/&'’]\w+)*?(?={_CONTRACTION})
    | \w+(?:[-/&'’]\w+)*
    | \S
    """,
    re.VERBOSE | re.IGNORECASE,
)


def split_words(text: str) -> list[str]:
    """The words of a sentence. What is split at blanks already stays as it is, but for punctuation that clings."""
    return _PIECES.findall(text)
