"""Parsing: words in, their tree out, written as brackets (Vinyals et al. 2015; Vaswani et al. 2017, §6.3)."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Self

import torch

from regard.data.registry import cache_folder
from regard.data.store import TokenStore, cached
from regard.data.tokenizer import TextTokenizer
from regard.data.tokenizer_training import train_tokenizer
from regard.data.trees import END, Tree, TreeSymbols, linearise
from regard.decode import DecodeConfig
from regard.errors import UserError
from regard.files import file_sha256
from regard.model import EncoderDecoder
from regard.score import BracketScore, score_brackets
from regard.task.job import Score, score_sets
from regard.task.parser import load_parser, parse_words, reading
from regard.task.parsing_recipe import SYMBOLS, ParsingRecipe, TreesConfig
from regard.task.recipe import Say
from regard.task.sequences import SequenceTask
from regard.train.task import Measured
from regard.train.world import ALONE, World


@dataclass(frozen=True)
class Grammar:
    """What makes ids of words and of trees."""

    text: TextTokenizer
    symbols: TreeSymbols

    def knows(self, tree: Tree) -> bool:
        """Whether a tree can be written in these symbols."""
        return all(symbol in self.symbols for symbol in linearise(tree, self.symbols.tagged))

    def items(self, trees: Iterable[Tree]) -> Iterator[tuple[list[int], list[int]]]:
        """Ids of both sides, each with its end."""
        assert self.text.end is not None
        for tree in trees:
            source = [*self.text.encode(reading(tree.words())), self.text.end]
            yield source, [*self.symbols.encode_tree(tree), END]


class ParsingTask(SequenceTask):
    """Trees, an encoder–decoder, the loss of its next symbols, and the F1 of the trees it writes."""

    def __init__(
        self,
        recipe: ParsingRecipe,
        grammar: Grammar,
        train: TokenStore,
        valid: TokenStore | None,
        trees: dict[str, list[Tree]],
        fingerprints: dict[str, str],
        model: EncoderDecoder,
        world: World = ALONE,
    ) -> None:
        """`trees` are those not learnt from, by name: "valid" and the test sets."""
        super().__init__(recipe.train, recipe.data.longest, train, valid, model, world)
        self.recipe, self.grammar, self.trees, self.fingerprints = recipe, grammar, trees, fingerprints

    @classmethod
    def begin(cls, recipe: ParsingRecipe, folder: Path, say: Say, world: World) -> Self:
        """A tokenizer, symbols, stores of ids and a model with its first weights."""
        data = recipe.data
        parts = dict(data.test) if data.valid is None else {"valid": data.valid, **data.test}
        grammar, first = world.in_turn(lambda: _grammar_and_model(recipe, folder, say))
        held = {name: list(part.trees()) for name, part in parts.items()}
        fingerprints = {"train": " ".join(file_sha256(part.file) for part in data.train)}
        fingerprints |= {name: file_sha256(part.file) for name, part in parts.items()}
        train = world.in_turn(lambda: _store(grammar, list(_training(recipe)), say))
        known = [tree for tree in held.get("valid", []) if grammar.knows(tree)]
        valid = world.in_turn(lambda: _store(grammar, known, say)) if known else None
        torch.manual_seed(recipe.train.seed)
        sizes = len(grammar.symbols), grammar.text.vocabulary
        model = recipe.model_settings(*sizes).build() if first is None else first.train()
        return cls(recipe, grammar, train, valid, held, fingerprints, model, world)

    def measure(self) -> Measured | None:
        """F1 of trees found by greedy search: quick, and a good guess at what a beam would find."""
        trees = self.trees.get("valid")
        if not trees:
            return None
        greedy = DecodeConfig.read(self.recipe.decode.plain() | {"beams": 1, "outputs": None})
        scored = self.score(trees, greedy)
        return Measured(scored.f1, {"f1": scored.f1, "exact": scored.exact})

    def score(self, trees: list[Tree], decode: DecodeConfig) -> BracketScore:
        """How well trees over the same words agree with these; several processes share them out."""
        words = [tree.words() for tree in self.world.share(trees)]
        grammar = self.grammar
        found = parse_words(self.worker(len(words)), grammar.text, grammar.symbols, words, decode)
        mine = self.world.whole([str(one.tree) for one in found])
        return score_brackets([Tree.of(one) for one in mine], trees)

    def test(self, say: Say) -> dict[str, Score]:
        """The test sets, by the search the recipe names; without any, the validation part."""
        return score_sets(self.recipe, self.trees, lambda trees: self.score(trees, self.recipe.decode), say)

    def facts(self) -> dict[str, Any]:
        return {"data": self.fingerprints, "decode": self.recipe.decode.plain()}


def _training(recipe: ParsingRecipe) -> Iterator[Tree]:
    """All trees to learn from, each as often as it counts."""
    return chain.from_iterable(part.trees() for part in recipe.data.train for _ in range(part.times))


def _grammar_and_model(recipe: ParsingRecipe, folder: Path, say: Say) -> tuple[Grammar, EncoderDecoder | None]:
    """Learnt once for a run and kept in its folder, or those of an earlier model."""
    place, symbols = folder / "tokenizer.json", folder / SYMBOLS
    if recipe.init_from is not None:
        first = load_parser(recipe.init_from)
        first.text.save(place)
        first.symbols.save(symbols)
        say(f"Starting from the weights, tokenizer and symbols of {recipe.init_from}.")
        return Grammar(first.text, first.symbols), first.encoder_decoder
    if not symbols.is_file():
        trees = [tree for part in recipe.data.train for tree in part.trees()]
        if not trees:
            raise UserError(f"{_places(recipe.data.train)}: there is no tree to learn from; at least one is needed.")
        train_tokenizer(recipe.tokenizer, (reading(tree.words()) for tree in trees), say).save(place)
        TreeSymbols.of(trees, recipe.data.tags).save(symbols)  # last: while it is missing, both are made again
    return Grammar(TextTokenizer.load(place), TreeSymbols.load(symbols)), None


def _places(parts: tuple[TreesConfig, ...]) -> str:
    return ", ".join(part.place for part in parts)


def _store(grammar: Grammar, trees: list[Tree], say: Say) -> TokenStore:
    """The ids of trees and their words, made once and found again by content."""
    key = json.dumps([list(map(str, trees)), grammar.text.fingerprint, grammar.symbols.symbols])
    sizes = {"source": grammar.text.vocabulary, "target": len(grammar.symbols)}
    return cached(cache_folder() / "tokens", key, lambda: grammar.items(trees), tuple(sizes), sizes, say)
