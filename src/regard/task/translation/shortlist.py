"""Vocabulary shortlists: learned from sentence pairs and saved in the run folder."""

import hashlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from torch import Tensor

from regard.data.text.corpus import Corpus
from regard.data.text.pairs import Pair
from regard.data.text.word_alignment import encode_pairs, learn_lexicon
from regard.data.tokenizers.tokenizer import TextTokenizer
from regard.decode.shortlist import Shortlist
from regard.errors import UserError
from regard.files import check_encodable, new_file
from regard.run import find_model, read_metadata
from regard.run.tensors import read_tensors, write_tensors
from regard.task.translation.recipe import read_translation_recipe

SHORTLIST = "shortlist.safetensors"
"""The file in a run folder."""
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
    """The most probable target tokens of each source token, and the most frequent target tokens.

    Special tokens are always allowed, and so are the candidates of the end token, which every source contains.
    `progress` is called with the number of pairs read.
    """
    ids = encode_pairs(source, target, pairs, progress)
    sizes = source.vocab_size, target.vocab_size
    learned = learn_lexicon(ids, sizes, candidates=candidates, frequent=frequent)
    likeliest = torch.from_numpy(learned.candidates)
    special = [token for token in (target.pad, target.bos, target.eos, target.unk) if token is not None]
    behind = likeliest[source.eos] if source.eos is not None else likeliest[0, :0]
    always = torch.cat((torch.tensor(special, dtype=torch.int32), torch.from_numpy(learned.frequent), behind)).unique()
    return Shortlist(always[always >= 0], likeliest, _vocabulary_hashes(source, target))


def save_shortlist(shortlist: Shortlist, path: Path) -> None:
    with new_file(path) as temporary:
        write_tensors(temporary, {name: getattr(shortlist, name) for name in _NAMES})


def load_shortlist(path: str | Path, source: TextTokenizer, target: TextTokenizer) -> Shortlist:
    """Read a shortlist, which must have been made for these tokenizers: elsewhere the same ids are other tokens."""
    if not Path(path).is_file():
        raise UserError(f"{path}: there is no such file; `regard shortlist` makes one.")
    tensors = read_tensors(Path(path))
    if sorted(tensors) != sorted(_NAMES):
        raise UserError(f"{path} is not a shortlist; `regard shortlist` makes one.")
    if not torch.equal(tensors["vocabularies"], _vocabulary_hashes(source, target)):
        raise UserError(
            f"{path} was made for a model with other tokenizers; make one for this model with `regard shortlist`."
        )
    shortlist = Shortlist(**tensors)
    if not _is_valid(shortlist, source.vocab_size, target.vocab_size):
        raise UserError(f"{path} is damaged; make it again with `regard shortlist`.")
    return shortlist


def training_corpus(model: str | Path) -> Corpus:
    """The training data of a model, from the recipe in its folder."""
    folder = find_model(model)
    read_metadata(folder)  # raises an error that says so if there is no such model
    if not (folder / "recipe.toml").is_file():
        raise UserError(f"{model} does not record its training data; give --source and --target, or --pairs.")
    return Corpus("train", read_translation_recipe(folder / "recipe.toml").data.train)


def find_shortlist(model: str | Path) -> Path:
    """The path of the shortlist in a model's folder; an error if there is none."""
    path = find_model(model) / SHORTLIST
    if not path.is_file():
        raise UserError(
            f"{model} has no shortlist; make one with `regard shortlist`, or give one with --shortlist-file."
        )
    return path


def learned_path(model: str | Path, out: Path | None, name: str = SHORTLIST) -> Path:
    """Where to write what is learned for a model: `out`, or the model's folder, unless it ships with the package."""
    folder = find_model(model)
    read_metadata(folder)
    if out is None and folder not in (Path(model), Path(str(model).rpartition("@")[0])):
        raise UserError(f"{model} ships with regard and is not changed; give the file to write with --out.")
    path = folder / name if out is None else out
    check_encodable(path)
    return path


def _is_valid(shortlist: Shortlist, sources: int, targets: int) -> bool:
    """Whether there is a row for each source token, and all entries are target ids or −1."""
    if shortlist.always.dim() != 1 or shortlist.likeliest.dim() != 2 or len(shortlist.likeliest) != sources:
        return False
    return all(
        not each.is_floating_point() and bool(((each >= -1) & (each < targets)).all())
        for each in (shortlist.always, shortlist.likeliest)
    )


def _vocabulary_hashes(*tokenizers: TextTokenizer) -> Tensor:
    """The SHA-256 of each vocabulary: every token with its id.  # (tokenizers, 32), bytes"""
    vocabularies = (sorted(each.tokenizer.get_vocab(with_added_tokens=True).items()) for each in tokenizers)
    digests = [hashlib.sha256(json.dumps(each).encode()).digest() for each in vocabularies]
    return torch.tensor([list(digest) for digest in digests], dtype=torch.uint8)
