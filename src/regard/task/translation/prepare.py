"""Prepare sentence pairs for training: filter, hold out, train the tokenizers, tokenize.

Every pair is tokenized once, and once more for each kind of augmentation; how often it occurs in an epoch is up to the
batches (`PreparedPairs.groups`). The corpus is streamed and never in memory as a whole. The tokenized pairs are cached
under a key that names everything they depend on, so a second run of the same recipe starts at once.
"""

import hashlib
import json
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from regard.data.batching.item_weights import ItemGroup
from regard.data.registry import cache_folder
from regard.data.store.token_store import TokenStore, cached_store
from regard.data.text.augment import add_augmented
from regard.data.text.corpus import Corpus, read_corpus
from regard.data.text.filters import Filter
from regard.data.text.pairs import Pair
from regard.data.tokenizers.extension import extend_pair
from regard.data.tokenizers.tokenizer import TextTokenizer, read_tokenizer
from regard.data.tokenizers.training import train_pair
from regard.errors import UserError
from regard.progress import counted, phase
from regard.task.held_out import HELD_OUT, held_out_size, log_held_out, write_held_out
from regard.task.translation.recipe import TranslationRecipe
from regard.task.translation.unknown_words import (
    DICTIONARY,
    Dictionary,
    learn_dictionary,
    load_dictionary,
    save_dictionary,
)
from regard.train.task import LogFn

_CHUNK = 2000
"""Pairs tokenized at once, on all threads."""


@dataclass(frozen=True)
class PreparedPairs:
    """The data as training needs it."""

    source: TextTokenizer
    target: TextTokenizer
    train: TokenStore
    groups: list[ItemGroup]
    """The sources of the training pairs and their weights."""
    valid: TokenStore | None
    valid_pairs: list[Pair]
    fingerprints: dict[str, str]
    """SHA-256 of each part of the data, for the model card."""
    dictionary: Dictionary | None = None
    """What unknown words are looked up in, if `decode.replace_unk` asks for it."""


def prepare_pairs(
    recipe: TranslationRecipe, folder: Path, log: LogFn, tokenizers: tuple[TextTokenizer, TextTokenizer] | None
) -> PreparedPairs:
    """Read, filter and hold out pairs, train the tokenizers (unless they are given), and tokenize."""
    corpus = Corpus("train", recipe.data.train)
    fingerprints = {"train": corpus.fingerprint()}
    valid_pairs = _read_valid_pairs(recipe)
    if recipe.data.valid is not None:
        fingerprints["valid"] = Corpus("valid", (recipe.data.valid,)).fingerprint()
    for name, source in recipe.data.test.items():
        test = Corpus(name, (source,))
        fingerprints[name] = test.fingerprint()
        for _ in counted(
            test.read(), "Reading the test data", "pairs"
        ):  # an error in the test data is better reported now than after training
            pass
    training = _TrainingPairs(recipe, corpus, log)
    if valid_pairs is None:
        valid_pairs = training.hold_out()
        if valid_pairs:
            write_held_out(folder / HELD_OUT, (pair._asdict() for pair in valid_pairs))
    tokenizers = _tokenizers(recipe, training, folder, log, tokenizers)
    key = json.dumps(
        [
            corpus.content_fingerprint(),
            recipe.data.filter.plain(),
            [tokenizer.fingerprint for tokenizer in tokenizers],
            _digest(valid_pairs) if recipe.data.valid is None else "",
            0,
            *recipe.data.augment.key(),
        ]
    )
    valid_key = json.dumps(["valid", _digest(valid_pairs), *(tokenizer.fingerprint for tokenizer in tokenizers)])
    train = _tokenized(training.examples, tokenizers, key, log)
    groups = _groups(training, key, log)
    valid = _tokenized(lambda: valid_pairs, tokenizers, valid_key, log) if valid_pairs else None
    short = [] if valid is None else _short_pairs(valid_pairs, valid, recipe.data.max_length, log)
    dictionary = _dictionary(training, folder) if recipe.decode.replace_unk == "dictionary" else None
    return PreparedPairs(*tokenizers, train, groups, valid, short, fingerprints, dictionary)


def read_tokenizers(
    folder: Path, extended: tuple[TextTokenizer, TextTokenizer] | None = None
) -> tuple[TextTokenizer, TextTokenizer] | None:
    """The tokenizers in a run folder, the same object twice if the languages share it; None if there is none yet.

    Their special tokens are those of the tokenizers that they extend, if any.
    """
    source_path, target_path = folder / "tokenizer.json", folder / "target_tokenizer.json"
    if not source_path.is_file():
        return None
    special = ({}, {}) if extended is None else tuple(each.special_roles for each in extended)
    source = TextTokenizer(read_tokenizer(source_path), **special[0])
    return source, TextTokenizer(read_tokenizer(target_path), **special[1]) if target_path.is_file() else source


class _TrainingPairs:
    """The pairs to train on: filtered, without those that are held out."""

    def __init__(self, recipe: TranslationRecipe, corpus: Corpus, log: LogFn) -> None:
        self.recipe, self.corpus, self.log = recipe, corpus, log
        self._held_out: set[str] = set()
        self._sizes: list[int] | None = None
        self._reported = False

    def hold_out(self) -> list[Pair]:
        """Sample pairs for validation with a fixed seed, at most a twentieth of all; `pairs` then leaves them out.

        It also leaves out pairs that share a sentence with them: the model would be tested on what it was trained on.
        """
        size, generator = self.recipe.data.dev_size, random.Random(0)
        sample: list[Pair] = []  # reservoir sampling
        total = 0
        for total, pair in enumerate(counted(self.pairs(), "Reading and filtering", "pairs"), start=1):
            if len(sample) < size:
                sample.append(pair)
            elif (index := generator.randrange(total)) < size:
                sample[index] = pair
        sample = sorted(sample, key=lambda pair: hashlib.sha256(repr(pair).encode()).digest())
        sample = sample[: held_out_size(total, size)]
        held_out = {_normalized(side) for pair in sample for side in pair}
        left = sum(1 for pair in self.pairs() if held_out.isdisjoint(map(_normalized, pair))) if sample else total
        if 2 * left < total:
            self.log(
                f"No pair is held out: {total - left:,} of {total:,} pairs share a sentence with those that would be."
            )
            return []
        if sample:
            self._held_out = held_out
        log_held_out(self.log, len(sample), total, size, "pair")
        return sample

    def pairs(self) -> Iterator[Pair]:
        """All pairs, once. The first pass logs what the filter dropped."""
        return (pair for _, pair in self._by_part())

    def examples(self) -> Iterator[Pair]:
        """All pairs, once, source after source, and then again for each kind of augmentation."""
        parts, augmentations = len(self.corpus.parts), self.recipe.data.augment.augmentations()
        sizes = [0] * parts * (1 + len(augmentations))
        for part, pair in self._by_part():
            sizes[part] += 1
            yield pair
        for number, augmentation in enumerate(augmentations, start=1):
            for part, pair in self._by_part():
                changed = augmentation.apply(pair)
                if changed is not None:
                    sizes[number * parts + part] += 1
                    yield changed
        self._sizes = sizes

    def group_sizes(self) -> list[int]:
        """How many `examples` come from each source, and from each source by each kind of augmentation."""
        if self._sizes is None:
            for _ in self.examples():
                pass
        assert self._sizes is not None
        return self._sizes

    def group_weights(self) -> list[float]:
        """How often each of these occurs in an epoch."""
        fractions = [1.0, *(augmentation.fraction for augmentation in self.recipe.data.augment.augmentations())]
        return [fraction * part.weight for fraction in fractions for part in self.corpus.parts]

    def _by_part(self) -> Iterator[tuple[int, Pair]]:
        """All pairs, once, each with the number of its source."""
        filtered = Filter(self.recipe.data.filter)
        part = count = 0

        def read() -> Iterator[Pair]:
            nonlocal part
            for number, source in enumerate(self.corpus.parts):
                part = number
                yield from read_corpus(source)

        for pair in filtered.apply(read()):
            if not self._held_out or self._held_out.isdisjoint(map(_normalized, pair)):
                count += 1
                yield part, pair
        if not self._reported:
            self._reported = True
            if filtered.stats.kept < filtered.stats.total:
                self.log(str(filtered.stats))
        if not count:
            raise UserError(
                f"No sentence pair is left to train on: {filtered.stats}. Check data.train, or relax data.filter."
            )


def _normalized(text: str) -> str:
    """A sentence for comparison: its letters and digits, case-folded."""
    return "".join(character for character in text.casefold() if character.isalnum())


def _read_valid_pairs(recipe: TranslationRecipe) -> list[Pair] | None:
    if recipe.data.valid is None:
        return None
    pairs = Corpus("valid", (recipe.data.valid,)).read()
    return [pair for pair in pairs if pair.source.strip() and pair.target.strip()]


def _short_pairs(pairs: list[Pair], store: TokenStore, max_length: int, log: LogFn) -> list[Pair]:
    """The validation pairs no longer than those trained on: decoding longer ones would take too long."""
    lengths = zip(*(store.lengths(side).tolist() for side in store.sides), strict=True)
    short = [pair for pair, sides in zip(pairs, lengths, strict=True) if max(sides) <= max_length]
    if len(short) < len(pairs):
        log(
            f"{len(pairs) - len(short):,} validation pairs of more than {max_length:,} tokens "
            "(data.max_length) are skipped."
        )
    return short


def _tokenizers(
    recipe: TranslationRecipe,
    training: _TrainingPairs,
    folder: Path,
    log: LogFn,
    given: tuple[TextTokenizer, TextTokenizer] | None,
) -> tuple[TextTokenizer, TextTokenizer]:
    """Those given, unless they are to be extended; otherwise trained, or extended, once per run and saved in its
    folder."""
    config, augmentations = recipe.tokenizer, recipe.data.augment.augmentations()
    if given is not None and not config.new_tokens:
        return _save_tokenizers(*given, folder)
    found = read_tokenizers(folder, given)
    if found is not None:
        return found

    def texts(side: int) -> Iterator[str]:
        pairs = add_augmented(islice(training.pairs(), config.max_examples), augmentations)
        return (pair[side] for pair in pairs)

    if given is None:
        return _save_tokenizers(*train_pair(config, texts(0), texts(1), config.shared, log), folder)
    return _save_tokenizers(*extend_pair(*given, texts(0), texts(1), config.new_tokens, log), folder)


def _save_tokenizers(source: TextTokenizer, target: TextTokenizer, folder: Path) -> tuple[TextTokenizer, TextTokenizer]:
    if target is not source:
        target.save(folder / "target_tokenizer.json")
    source.save(folder / "tokenizer.json")  # last: while it is missing, both are trained again
    return source, target


def _dictionary(training: _TrainingPairs, folder: Path) -> Dictionary:
    """Learned once per run, and saved in its folder."""
    path = folder / DICTIONARY
    if not path.is_file():
        with phase("Learning the dictionary", "pairs") as learning:
            save_dictionary(learn_dictionary(training.pairs, learning.update), path)
    return load_dictionary(path)


def _tokenized(
    pairs: Callable[[], Iterable[Pair]], tokenizers: tuple[TextTokenizer, TextTokenizer], key: str, log: LogFn
) -> TokenStore:
    """The ids of both sides, each with its end token: read from the cache, or written to it."""
    sizes = {"source": tokenizers[0].vocab_size, "target": tokenizers[1].vocab_size}

    def items() -> Iterator[tuple[list[int], ...]]:
        stream = iter(pairs())
        while chunk := list(islice(stream, _CHUNK)):
            sides = [
                [[*ids, _end(tokenizer)] for ids in tokenizer.encode_batch([pair[side] for pair in chunk])]
                for side, tokenizer in enumerate(tokenizers)
            ]
            yield from zip(*sides, strict=True)

    return cached_store(cache_folder() / "tokens", key, items, tuple(sizes), sizes, log)


def _groups(training: _TrainingPairs, key: str, log: LogFn) -> list[ItemGroup]:
    """The sources of the tokenized pairs and their weights; their sizes are cached beside the pairs."""
    weights = training.group_weights()
    if all(weight == 1 for weight in weights):
        return []

    def items() -> Iterator[tuple[list[int]]]:
        return (([size],) for size in training.group_sizes())

    sizes = cached_store(cache_folder() / "tokens", f"{key} groups", items, ("sizes",), 1 << 31, log).stream("sizes")[0]
    return [ItemGroup(size, weight) for size, weight in zip(sizes.tolist(), weights, strict=True)]


def _end(tokenizer: TextTokenizer) -> int:
    assert tokenizer.eos is not None
    return tokenizer.eos


def _digest(pairs: list[Pair]) -> str:
    return hashlib.sha256(json.dumps(pairs).encode()).hexdigest()
