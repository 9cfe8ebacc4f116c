"""Vocabulary extension: more tokens for a trained BPE tokenizer, for text that it cuts into too many pieces.

Byte-pair encoding goes on where its training ended: the most frequent pair of neighboring tokens is merged, and then
the next. All old merges come first, so text in which no new pair occurs is tokenized exactly as before, and all old
tokens keep their ids. The same texts give the same tokenizer.json, byte for byte.
"""

import heapq
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, pairwise

from tokenizers import Tokenizer

from regard.config import ConfigError
from regard.data.text.augment import lowercase
from regard.data.tokenizers.tokenizer import TextTokenizer

_Pair = tuple[str, str]


def extend_tokenizer(
    tokenizer: TextTokenizer, texts: Iterable[str], new_tokens: int, log: Callable[[str], None] | None = None
) -> TextTokenizer:
    """The tokenizer with so many new tokens, learned from texts. Too few texts give fewer, which is logged."""
    values = json.loads(tokenizer.json)
    model = values["model"]
    is_bpe = model["type"] == "BPE" and model["merges"] and values["pre_tokenizer"] is not None
    if not is_bpe or model["continuing_subword_prefix"] or model["end_of_word_suffix"]:
        raise ConfigError("tokenizer.new_tokens", "only a tokenizer of kind bpe can be extended; leave this key out.")
    size, limit = tokenizer.vocab_size, tokenizer.vocab_size + new_tokens
    words = _Words(_word_counts(tokenizer.tokenizer, texts))
    while size < limit and (pair := words.most_frequent_pair()) is not None:
        words.merge(pair)
        model["merges"].append(list(pair))
        if "".join(pair) not in model["vocab"]:
            model["vocab"]["".join(pair)] = size
            size += 1
    if log is not None and size < limit:
        log(
            f"The tokenizer has {size - tokenizer.vocab_size} new tokens instead of {new_tokens}, because there is "
            "too little text for more."
        )
    return TextTokenizer(Tokenizer.from_str(json.dumps(values)), **tokenizer.special_roles)


def extend_pair(
    source: TextTokenizer,
    target: TextTokenizer,
    sources: Iterable[str],
    targets: Iterable[str],
    new_tokens: int,
    log: Callable[[str], None] | None = None,
) -> tuple[TextTokenizer, TextTokenizer]:
    """Both tokenizers, extended by so many tokens each; if they are one tokenizer, it is extended once, for both."""
    if target is source:
        both = extend_tokenizer(source, chain(sources, targets), new_tokens, log)
        return both, both
    return extend_tokenizer(source, sources, new_tokens, log), extend_tokenizer(target, targets, new_tokens, log)


def replaced_tokens(
    old: TextTokenizer, extended: TextTokenizer, languages: Sequence[str | None] = (None,)
) -> list[list[int]]:
    """For each new token, the old tokens of the same text.

    The text is taken in lower case (as written in each of the languages), with an initial capital or as it is,
    whichever is the fewest tokens: "HOUSE" was five letters, and "house" is a word that the model knows. If the
    languages differ and both are equally short, it is the tokens of both: "IN" is "in" or, in Turkish, "ın".
    """
    return [_replaced(old, extended, token, languages) for token in range(old.vocab_size, extended.vocab_size)]


def _replaced(old: TextTokenizer, extended: TextTokenizer, token: int, languages: Sequence[str | None]) -> list[int]:
    text, name = extended.decode([token]), extended.tokenizer.id_to_token(token)
    if "�" in text:  # part of a character
        return [piece.id for piece in old.tokenizer.model.tokenize(name or "")]
    first = len(text) - len(text.lstrip()) + 1  # spaces and the first letter
    lower = [lowercase(text, language) for language in languages]
    capitalized = [text[:first] + each[first:] for each in lower]
    encoded = [[old.encode(each) for each in dict.fromkeys(forms)] for forms in (lower, capitalized, [text])]
    fewest = [min(map(len, rows)) for rows in encoded]
    best = fewest.index(min(fewest))
    return [piece for ids in encoded[best] if len(ids) == fewest[best] for piece in ids]


def _word_counts(tokenizer: Tokenizer, texts: Iterable[str]) -> list[tuple[list[str], int]]:
    """The different words (pre-tokens) of texts as the tokens that they are cut into, and how often each occurs."""
    counts: Counter[str] = Counter()
    for text in texts:
        text = text if tokenizer.normalizer is None else tokenizer.normalizer.normalize_str(text)
        counts.update(word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text))
    return [([piece.value for piece in tokenizer.model.tokenize(word)], count) for word, count in counts.items()]


class _Words:
    """Words as sequences of tokens, in which pairs are merged, and the counts of all pairs."""

    def __init__(self, words: list[tuple[list[str], int]]) -> None:
        self.words = words
        self.counts: Counter[_Pair] = Counter()
        self.places: defaultdict[_Pair, set[int]] = defaultdict(set)
        """The words in which a pair occurs, or did."""
        for number in range(len(words)):
            self._count(number, 1)
        self.queue = [(-count, pair) for pair, count in self.counts.items()]
        heapq.heapify(self.queue)

    def most_frequent_pair(self) -> _Pair | None:
        """The most frequent pair, the first in alphabetical order if there are several; None if none occurs twice."""
        while self.queue:
            negative, pair = heapq.heappop(self.queue)
            if self.counts[pair] == -negative:
                return pair if negative < -1 else None
            heapq.heappush(self.queue, (-self.counts[pair], pair))  # its count has changed since
        return None

    def merge(self, pair: _Pair) -> None:
        """Merge a pair into one token, wherever it occurs."""
        changed: set[_Pair] = set()
        for number in self.places.pop(pair):
            self._count(number, -1)
            tokens, count = self.words[number]
            self.words[number] = _merged(tokens, pair), count
            changed |= self._count(number, 1)
        for each in changed:
            heapq.heappush(self.queue, (-self.counts[each], each))

    def _count(self, number: int, sign: int) -> set[_Pair]:
        """Add the pairs of a word to the counts, or subtract them; returns these pairs."""
        tokens, count = self.words[number]
        pairs = list(pairwise(tokens))
        for pair in pairs:
            self.counts[pair] += sign * count
            self.places[pair].add(number)
        return set(pairs)


def _merged(tokens: list[str], pair: _Pair) -> list[str]:
    """The tokens, with each occurrence of the pair merged, from left to right."""
    merged: list[str] = []
    for token in tokens:
        if merged and (merged[-1], token) == pair:
            merged[-1] += token
        else:
            merged.append(token)
    return merged
