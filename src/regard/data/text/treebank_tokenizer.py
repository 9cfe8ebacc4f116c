"""Splitting sentences into words as the Penn Treebank does: punctuation, `n't` and `'s` are separate words."""

import re

_CONTRACTION = r"(?:n['’]t|['’](?:s|re|ve|ll|d|m))(?![\w'’])"
_WORD = re.compile(
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


def treebank_tokenize(text: str) -> list[str]:
    """The words of a sentence. Text that is already tokenized stays as it is, except for attached punctuation."""
    return _WORD.findall(text)
