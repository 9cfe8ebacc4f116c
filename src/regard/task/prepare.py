"""From a recipe's data to tokenizers and stores of ids, all of it made once and found again.

Reading streams: the pairs of a corpus are never all in memory. What is made of them is kept under the name of what it
was made from, so a second run of the same recipe starts at once.
"""

import hashlib
import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from regard.data.corpus import Corpus
from regard.data.filter import Filter
from regard.data.pairs import Pair
from regard.data.registry import cache_folder
from regard.data.store import TokenStore, cached
from regard.data.tokenizer import TextTokenizer
from regard.data.tokenizer_training import train_pair
from regard.errors import UserError
from regard.files import write_text
from regard.task.recipe import Say
from regard.task.translation_recipe import HELD_OUT, TranslationRecipe

_CHUNK = 2000
"""Pairs tokenised at once, on all threads."""


@dataclass(frozen=True)
class Prepared:
    """What training needs of the data."""

    source: TextTokenizer
    target: TextTokenizer
    train: TokenStore
    valid: TokenStore | None
    valid_pairs: list[Pair]
    fingerprints: dict[str, str]
    """SHA-256 of each part of the data, for the model card."""


def prepare(
    recipe: TranslationRecipe, folder: Path, say: Say, tokenizers: tuple[TextTokenizer, TextTokenizer] | None
) -> Prepared:
    """Read, filter, hold out, learn the tokenizers (unless they are given) and tokenise."""
    corpus = Corpus("train", recipe.data.train)
    fingerprints = {"train": corpus.fingerprint()}
    valid_pairs = _valid_pairs(recipe)
    if recipe.data.valid is not None:
        fingerprints["valid"] = Corpus("valid", (recipe.data.valid,)).fingerprint()
    for name, part in recipe.data.test.items():
        test = Corpus(name, (part,))
        fingerprints[name] = test.fingerprint()
        for _ in test.read():  # what is wrong with it is better known now than when training is over
            pass
    source = _Training(recipe, corpus, say)
    watched = valid_pairs
    if watched is None:
        watched = source.hold_out()
        if watched:
            lines = [json.dumps(pair._asdict(), ensure_ascii=False) for pair in watched]
            write_text(folder / HELD_OUT, "".join(f"{line}\n" for line in lines))
    made = tokenizers or _tokenizers(recipe, source, folder, say)
    key = json.dumps(
        [
            fingerprints["train"],
            recipe.data.filter.plain(),
            [made[0].fingerprint, made[1].fingerprint],
            _digest(watched) if recipe.data.valid is None else "",
            recipe.train.seed if any(part.weight != 1 for part in recipe.data.train) else 0,
        ]
    )
    place = cache_folder() / "tokens"
    sizes = {"source": made[0].vocabulary, "target": made[1].vocabulary}
    train = cached(place, key, lambda: _items(source.pairs(), made), tuple(sizes), sizes, say)
    valid = None
    if watched:
        valid_key = json.dumps(["valid", _digest(watched), made[0].fingerprint, made[1].fingerprint])
        valid = cached(place, valid_key, lambda: _items(watched, made), tuple(sizes), sizes, say)
    short = [] if valid is None else _without_longest(watched, valid, recipe.data.longest, say)
    return Prepared(*made, train, valid, short, fingerprints)


def read_tokenizers(folder: Path) -> tuple[TextTokenizer, TextTokenizer] | None:
    """The tokenizers of a run folder, the same one twice where the languages share it; None if it has none yet."""
    first, second = folder / "tokenizer.json", folder / "target_tokenizer.json"
    if not first.is_file():
        return None
    source = TextTokenizer.load(first)
    return source, TextTokenizer.load(second) if second.is_file() else source


class _Training:
    """The pairs to learn from: filtered, without those that are held out."""

    def __init__(self, recipe: TranslationRecipe, corpus: Corpus, say: Say) -> None:
        self.recipe, self.corpus, self.say = recipe, corpus, say
        self._held: set[str] = set()
        self._reported = False

    def hold_out(self) -> list[Pair]:
        """A few pairs, chosen by a fixed seed, and a twentieth of all at most; from now on `pairs` leaves them out.

        So are pairs that share a sentence with them: what was seen in training says little about what was not.
        """
        wanted, dice = self.recipe.data.hold_out, random.Random(0)
        chosen: list[Pair] = []
        total = 0
        for total, pair in enumerate(self.pairs(), start=1):
            if len(chosen) < wanted:
                chosen.append(pair)
            elif (place := dice.randrange(total)) < wanted:
                chosen[place] = pair
        chosen = sorted(chosen, key=lambda pair: hashlib.sha256(repr(pair).encode()).digest())[: total // 20]
        held = {_known_by(side) for pair in chosen for side in pair}
        left = sum(1 for pair in self.pairs() if held.isdisjoint(map(_known_by, pair))) if chosen else total
        noun = "pair" if total == 1 else "pairs"
        if 2 * left < total:
            self.say(
                f"No pair is held out: {total - left:,} of {total:,} {noun} share a sentence with those that would be."
            )
            return []
        if chosen:
            self._held = held
            self.say(f"{len(chosen):,} of {total:,} {noun} are held out to watch the run (data.hold_out).")
        elif wanted:
            self.say(f"With only {total:,} {noun} none is held out: nothing tells how well the model does on others.")
        return chosen

    def pairs(self) -> Iterator[Pair]:
        """All of them, once, by their weights. The first time through, what the filter dropped is said."""
        sift = Filter(self.recipe.data.filter)
        count = 0
        for pair in sift.apply(self.corpus.mix(self.recipe.train.seed)):
            if not self._held or self._held.isdisjoint(map(_known_by, pair)):
                count += 1
                yield pair
        if not self._reported:
            self._reported = True
            if sift.report.kept < sift.report.total:
                self.say(str(sift.report))
        if not count:
            raise UserError(
                f"No sentence pair is left to train on: {sift.report}. Check data.train, or let data.filter drop less."
            )


def _known_by(text: str) -> str:
    """A sentence as it is recognised again: letters and digits, whatever their case."""
    return "".join(sign for sign in text.casefold() if sign.isalnum())


def _valid_pairs(recipe: TranslationRecipe) -> list[Pair] | None:
    if recipe.data.valid is None:
        return None
    return [
        pair for pair in Corpus("valid", (recipe.data.valid,)).read() if pair.source.strip() and pair.target.strip()
    ]


def _without_longest(pairs: list[Pair], store: TokenStore, longest: int, say: Say) -> list[Pair]:
    """Validation pairs no longer than those trained on: decoding what goes on for ever would take as long."""
    lengths = zip(*(store.lengths(side).tolist() for side in store.sides), strict=True)
    kept = [pair for pair, sides in zip(pairs, lengths, strict=True) if max(sides) <= longest]
    if len(kept) < len(pairs):
        say(f"{len(pairs) - len(kept):,} validation pairs of more than {longest:,} tokens (data.longest) are left out.")
    return kept


def _tokenizers(
    recipe: TranslationRecipe, training: _Training, folder: Path, say: Say
) -> tuple[TextTokenizer, TextTokenizer]:
    """Learnt once for a run and kept in its folder."""
    found = read_tokenizers(folder)
    if found is not None:
        return found
    config, count = recipe.tokenizer, recipe.tokenizer.sample

    def side(number: int) -> Iterator[str]:
        return (pair[number] for pair in islice(training.pairs(), count))

    made = train_pair(config, side(0), side(1), config.shared, say)
    if made[1] is not made[0]:
        made[1].save(folder / "target_tokenizer.json")
    made[0].save(folder / "tokenizer.json")  # last: while it is missing, both are learnt again
    return made


def _items(pairs: Iterable[Pair], tokenizers: tuple[TextTokenizer, TextTokenizer]) -> Iterator[tuple[list[int], ...]]:
    """Ids of both sides, each with its end."""
    stream = iter(pairs)
    while chunk := list(islice(stream, _CHUNK)):
        sides = [
            [[*ids, _end(tokenizer)] for ids in tokenizer.encode_batch([pair[number] for pair in chunk])]
            for number, tokenizer in enumerate(tokenizers)
        ]
        yield from zip(*sides, strict=True)


def _end(tokenizer: TextTokenizer) -> int:
    assert tokenizer.end is not None
    return tokenizer.end


def _digest(pairs: list[Pair]) -> str:
    return hashlib.sha256(json.dumps(pairs).encode()).hexdigest()
