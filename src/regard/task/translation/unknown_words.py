"""Replacing unknown words of a translation by what their source words mean (Luong et al. 2015, Addressing the rare
word problem).

A vocabulary of whole words has one token for all the words it lacks, mostly names and numbers. Attention tells which
word of the source such a token stands for: the one with the largest weight in the last layer that attends to the
source. It is looked up in a dictionary, or copied. Search is not changed: one teacher-forced pass over the finished
translations gives their attention, and only those with an unknown word go through it.

A dictionary maps words of the source language to their most likely translations, learned from the training pairs by IBM
model 1 over whole words, so that it knows words that the model's vocabulary lacks. It is a plain file of two columns.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import torch

from regard.data.text.lines import read_lines
from regard.data.text.pairs import Pair
from regard.data.text.word_alignment import MAX_PAIRS, encode_pairs, learn_lexicon
from regard.data.tokenizers.tokenizer import TextTokenizer
from regard.data.tokenizers.training import TokenizerConfig, train_tokenizer
from regard.decode.cross_attention import cross_attention, has_cross_attention, plain_models
from regard.errors import UserError
from regard.files import new_file
from regard.run.locate import note
from regard.task.translation.result import Translation

DICTIONARY = "dictionary.tsv"
"""The file in a run folder: a source word, a tab and its translation per line."""
Dictionary = Mapping[str, str]
_OUTPUTS = 256
"""Translations in a pass."""


def check_replaceable(model: Any, target: TextTokenizer) -> None:
    """Refuse models that do not attend to the source, and tokenizers without an unknown token."""
    if target.unk is None:
        raise UserError(
            "decode.replace_unk needs a tokenizer with an unknown token, of kind word or whitespace, and this one can "
            'write any word; set it to "off".'
        )
    if not all(map(has_cross_attention, plain_models(model))):
        raise UserError(
            "decode.replace_unk needs a model whose decoder attends to the source, and this one does not; set it to "
            '"off".'
        )


def replace_unknown_words(
    model: Any,
    tokenizers: tuple[TextTokenizer, TextTokenizer],
    lines: Sequence[str],
    found: Sequence[Sequence[Translation]],
    kind: Literal["copy", "dictionary"],
    dictionary: Dictionary | None,
) -> list[list[Translation]]:
    """The translations of each line, with words for unknown tokens; their tokens stay.

    Without a dictionary, words are copied.
    """
    if kind == "dictionary" and dictionary is None:
        note(f"There is no {DICTIONARY} (`regard dictionary` makes one), so unknown words are copied from the source.")
    words = {} if dictionary is None or kind == "copy" else dictionary
    results = [list(each) for each in found]
    where = [
        (row, rank) for row, each in enumerate(results) for rank, one in enumerate(each) if _unknown(one, tokenizers[1])
    ]
    where.sort(key=lambda at: len(results[at[0]][at[1]].tokens))  # similar lengths, hence little padding
    for first in range(0, len(where), _OUTPUTS):
        chunk = where[first : first + _OUTPUTS]
        pairs = [(lines[row], results[row][rank]) for row, rank in chunk]
        for (row, rank), one in zip(chunk, _replaced(model, tokenizers, pairs, words), strict=True):
            results[row][rank] = one
    return results


def learn_dictionary(pairs: Callable[[], Iterable[Pair]], progress: Callable[[int], None] | None = None) -> Dictionary:
    """The most likely translation of each word in the source sentences; `pairs` reads them, several times.

    `progress` is called with the number of pairs read.
    """
    config = TokenizerConfig(kind="word")

    def used() -> Iterable[Pair]:
        return islice(pairs(), MAX_PAIRS)

    source, target = (train_tokenizer(config, (pair[side] for pair in used())) for side in (0, 1))
    sizes = source.vocab_size, target.vocab_size
    learned = learn_lexicon(encode_pairs(source, target, used(), progress), sizes, candidates=1, frequent=0)
    best = learned.candidates[:, 0].tolist()
    words = {token: word for word, token in target.tokenizer.get_vocab().items()}
    known = (
        (word, best[token]) for word, token in source.tokenizer.get_vocab().items() if token not in source.special_ids
    )
    return {word: words[token] for word, token in known if token >= 0}


def save_dictionary(dictionary: Dictionary, path: Path) -> None:
    with new_file(path) as temporary:
        lines = (f"{word}\t{dictionary[word]}\n" for word in sorted(dictionary))
        temporary.write_text("".join(lines), encoding="utf-8", newline="\n")


def load_dictionary(path: Path) -> Dictionary:
    """Read a file of two columns. Where a word has several lines, the first one counts."""
    dictionary: dict[str, str] = {}
    for number, line in enumerate(read_lines(path), start=1):
        word, tab, translation = line.partition("\t")
        if not tab or not word.strip() or not translation.strip() or "\t" in translation:
            problem = f"expected a source word, a tab and its translation, found {line!r}."
            raise UserError(f"{path}, line {number}: {problem}")
        dictionary.setdefault(word.strip(), translation.strip())
    return dictionary


def find_dictionary(folder: Path | None) -> Dictionary | None:
    """The dictionary in a run folder; None if there is none."""
    path = None if folder is None else folder / DICTIONARY
    return load_dictionary(path) if path is not None and path.is_file() else None


def _unknown(translation: Translation, tokenizer: TextTokenizer) -> bool:
    return tokenizer.unk in translation.tokens


@torch.inference_mode()
def _replaced(
    model: Any,
    tokenizers: tuple[TextTokenizer, TextTokenizer],
    pairs: Sequence[tuple[str, Translation]],
    dictionary: Dictionary,
) -> list[Translation]:
    """One translation of each line with words for unknown tokens, all in one pass."""
    source, target = tokenizers
    ids, spans = zip(*(source.encode_with_offsets(line) for line, _ in pairs), strict=True)
    outputs = [one.tokens for _, one in pairs]
    layers = [cross_attention(plain, ids, outputs)[-1] for plain in plain_models(model)]
    weights = torch.stack(layers).mean(dim=0)[..., :-1]  # (translations, steps, words); the last key can only be EOS
    assert target.unk is not None  # as `check_replaceable` has made sure
    name, results = target.tokenizer.id_to_token(target.unk), []
    for row, (line, one) in enumerate(pairs):
        aligned = weights[row, : len(one.tokens), : len(spans[row])].argmax(dim=-1).tolist()
        unknown = [at for at, token in zip(aligned, one.tokens, strict=True) if token == target.unk]
        copies = [line[slice(*spans[row][at])] for at in unknown]
        first, *rest = one.text.split(name)  # no other text of ours contains the name of a special token
        pieces = (f"{dictionary.get(copy, copy)}{after}" for copy, after in zip(copies, rest, strict=True))
        results.append(replace(one, text="".join((first, *pieces))))
    return results
