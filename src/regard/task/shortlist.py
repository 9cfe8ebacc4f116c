"""Shortlists of words: learnt from sentence pairs, kept in a file of a run's folder, found again."""

import hashlib
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from torch import Tensor

from regard.data.corpus import Corpus
from regard.data.lexicon import encode_pairs, learn_lexicon
from regard.data.pairs import Pair
from regard.data.tokenizer import TextTokenizer
from regard.decode.shortlist import Shortlist
from regard.errors import UserError
from regard.files import new_file
from regard.run import find, read_facts
from regard.run.tensors import read_tensors, write_tensors
from regard.task.reading import read_translation

SHORTLIST = "shortlist.safetensors"
"""The file in a run's folder."""
_NAMES = ("always", "likeliest", "vocabularies")


def learn_shortlist(
    pairs: Iterable[Pair],
    source: TextTokenizer,
    target: TextTokenizer,
    *,
    candidates: int = 50,
    frequent: int = 100,
    progress: Callable[[int], None] | None = None,
) -> Shortlist:
    """From sentence pairs: the likeliest target tokens of each source token, and the most frequent of all.

    Special tokens may always come, and so may those that the end of a source calls for: every source has one.
    `progress` hears how many pairs were read.
    """
    ids = encode_pairs(source, target, pairs, progress)
    sizes = source.vocabulary, target.vocabulary
    learnt = learn_lexicon(ids, sizes, candidates=candidates, frequent=frequent)
    likeliest = torch.from_numpy(learnt.table)
    special = [token for token in (target.padding, target.start, target.end, target.unknown) if token is not None]
    behind = likeliest[source.end] if source.end is not None else likeliest[0, :0]
    always = torch.cat((torch.tensor(special, dtype=torch.int32), torch.from_numpy(learnt.frequent), behind)).unique()
    return Shortlist(always[always >= 0], likeliest, _marks(source, target))


def save_shortlist(shortlist: Shortlist, place: Path) -> None:
    with new_file(place) as beside:
        write_tensors(beside, {name: getattr(shortlist, name) for name in _NAMES})


def load_shortlist(place: str | Path, source: TextTokenizer, target: TextTokenizer) -> Shortlist:
    """From a file made for these tokenizers: a token is a number, and means another word elsewhere."""
    if not Path(place).is_file():
        raise UserError(f"{place}: there is no such file; `regard shortlist` makes one.")
    tensors = read_tensors(Path(place))
    if sorted(tensors) != sorted(_NAMES):
        raise UserError(f"{place} is not a shortlist; `regard shortlist` makes one.")
    if not torch.equal(tensors["vocabularies"], _marks(source, target)):
        raise UserError(
            f"{place} was made for a model with other tokenizers; make one for this model with `regard shortlist`."
        )
    read = Shortlist(**tensors)
    if not _is_whole(read, source.vocabulary, target.vocabulary):
        raise UserError(f"{place} is damaged; make it again with `regard shortlist`.")
    return read


def training_corpus(model: str | Path) -> Corpus:
    """What a model was trained on, as the recipe in its folder says."""
    place = find(model)
    read_facts(place)  # says so if there is no such model
    if not (place / "recipe.toml").is_file():
        raise UserError(f"{model} does not say what it was trained on; give --source and --target, or --pairs.")
    return Corpus("train", read_translation(place / "recipe.toml").data.train)


def own_shortlist(model: str | Path) -> Path:
    """The shortlist in a model's folder, which must be there."""
    place = find(model) / SHORTLIST
    if not place.is_file():
        raise UserError(
            f"{model} has no shortlist of its own; make one with `regard shortlist`, or name one by --shortlist-file."
        )
    return place


def shortlist_place(model: str | Path, out: Path | None) -> Path:
    """Where to write a model's shortlist: its folder, unless it is another or ships with the package."""
    place = find(model)
    read_facts(place)
    if out is None and place != Path(model):
        raise UserError(f"{model} ships with regard and stays as it is; say where to write by --out FILE.")
    chosen = place / SHORTLIST if out is None else out
    if chosen.is_dir() or not os.access(chosen.parent, os.W_OK):
        raise UserError(f"{chosen} cannot be written; say where to write by --out FILE.")
    return chosen


def _is_whole(read: Shortlist, sources: int, targets: int) -> bool:
    """Whether there is a row for each source token, and every target token is one."""
    if read.always.dim() != 1 or read.likeliest.dim() != 2 or len(read.likeliest) != sources:
        return False
    return all(
        not each.is_floating_point() and bool(((each >= -1) & (each < targets)).all())
        for each in (read.always, read.likeliest)
    )


def _marks(*tokenizers: TextTokenizer) -> Tensor:
    """The SHA-256 of each vocabulary: every token with its id.  # (tokenizers, 32), bytes"""
    known = (sorted(each.tokenizer.get_vocab(with_added_tokens=True).items()) for each in tokenizers)
    digests = [hashlib.sha256(json.dumps(each).encode()).digest() for each in known]
    return torch.tensor([list(digest) for digest in digests], dtype=torch.uint8)
