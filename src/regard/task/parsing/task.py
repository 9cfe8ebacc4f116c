"""The parsing task: from words to a linearized tree (Vinyals et al. 2015; Vaswani et al. 2017, §6.3)."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch

from regard.data.batching.item_weights import ItemGroup
from regard.data.registry import cache_folder
from regard.data.store.token_store import TokenStore, cached_store
from regard.data.tokenizers.tokenizer import TextTokenizer
from regard.data.tokenizers.training import train_tokenizer
from regard.data.trees.linearization import EOS_ID, TreeVocabulary, linearize
from regard.data.trees.tree import Tree
from regard.decode import DecodeConfig
from regard.errors import UserError
from regard.files import file_sha256, write_text
from regard.model import Seq2SeqLM
from regard.progress import phase
from regard.run import LoadedModel
from regard.score import BracketScore, score_brackets
from regard.task.base import report_unknown, score_test_sets
from regard.task.held_out import HELD_OUT_TREES, split_held_out
from regard.task.init_from import start_from
from regard.task.parsing.pipeline import Parser, parse_words, source_text
from regard.task.parsing.recipe import SYMBOLS, ParsingRecipe
from regard.task.seq2seq import Seq2SeqTask
from regard.train.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from regard.train.task import Evaluation, LogFn, Score


@dataclass(frozen=True)
class Vocabularies:
    """The tokenizer of words and the vocabulary of trees."""

    tokenizer: TextTokenizer
    symbols: TreeVocabulary

    def covers(self, tree: Tree) -> bool:
        """Whether all symbols of a tree are in the vocabulary."""
        return all(symbol in self.symbols for symbol in linearize(tree, self.symbols.has_tags))

    def unknown(self, trees: Iterable[Tree]) -> list[str]:
        """The symbols of trees that are not in the vocabulary, sorted."""
        found = {symbol for tree in trees for symbol in linearize(tree, self.symbols.has_tags)}
        return sorted(symbol for symbol in found if symbol not in self.symbols)

    def encode(self, trees: Iterable[Tree]) -> Iterator[tuple[list[int], list[int]]]:
        """The ids of each tree's words and of the tree itself, each with its end token."""
        assert self.tokenizer.eos is not None
        for tree in trees:
            source = [*self.tokenizer.encode(source_text(tree.words())), self.tokenizer.eos]
            yield source, [*self.symbols.encode_tree(tree), EOS_ID]


class ParsingTask(Seq2SeqTask):
    """Trees, an encoder–decoder, the cross-entropy of linearized trees, and the bracket F1 of parsed ones."""

    def __init__(
        self,
        recipe: ParsingRecipe,
        vocabularies: Vocabularies,
        data: tuple[TokenStore | None, Sequence[ItemGroup], TokenStore | None],
        trees: dict[str, list[Tree]],
        fingerprints: dict[str, str],
        model: Seq2SeqLM,
        process_group: ProcessGroup = SINGLE_PROCESS,
    ) -> None:
        """`data` are the tokenized training data with its weights, and the tokenized validation data; `trees` those of
        "valid" and of the test sets."""
        train, groups, valid = data
        super().__init__(recipe.train, recipe.data.max_length, train, valid, model, process_group, groups)
        self.recipe, self.vocabularies, self.trees, self.fingerprints = recipe, vocabularies, trees, fingerprints

    @classmethod
    def prepare(cls, recipe: ParsingRecipe, folder: Path, log: LogFn, process_group: ProcessGroup) -> Self:
        """Train or load the vocabularies, encode the trees, and build the model with its initial weights."""
        data = recipe.data
        sources = dict(data.test) if data.valid is None else {"valid": data.valid, **data.test}
        groups, training_trees, held_out = process_group.rank0_first(lambda: _training_trees(recipe, folder, log))
        vocabularies, pretrained = process_group.rank0_first(
            lambda: _vocabularies_and_model(recipe, training_trees, folder, log)
        )
        trees = {name: list(source.trees()) for name, source in sources.items()}
        trees |= {"valid": held_out} if held_out else {}
        fingerprints = {"train": " ".join(file_sha256(source.file) for source in data.train)}
        fingerprints |= {name: file_sha256(source.file) for name, source in sources.items()}
        train = process_group.rank0_first(lambda: _encoded(vocabularies, training_trees, log))
        for name, some in trees.items():
            report_unknown(name, vocabularies.unknown(some), log)
        covered = [tree for tree in trees.get("valid", []) if vocabularies.covers(tree)]
        valid = process_group.rank0_first(lambda: _encoded(vocabularies, covered, log)) if covered else None
        torch.manual_seed(recipe.train.seed)
        sizes = len(vocabularies.symbols), vocabularies.tokenizer.vocab_size
        model = recipe.make_model_config(*sizes).build() if pretrained is None else pretrained.train()
        assert isinstance(model, Seq2SeqLM)
        return cls(recipe, vocabularies, (train, groups, valid), trees, fingerprints, model, process_group)

    @classmethod
    def for_testing(cls, recipe: ParsingRecipe, loaded: LoadedModel, process_group: ProcessGroup) -> Self:
        """The task with a trained model and its test sets only."""
        parser = Parser(loaded)
        trees = {name: list(source.trees()) for name, source in recipe.test_sources().items()}
        for name, source in recipe.test_sources().items():
            if not trees[name]:
                raise UserError(f"{source.location}: there is no tree to test on; at least one is needed.")
        vocabularies = Vocabularies(parser.tokenizer, parser.symbols)
        return cls(recipe, vocabularies, (None, (), None), trees, {}, parser.encoder_decoder, process_group)

    def evaluate(self) -> Evaluation | None:
        """F1 of greedily parsed trees: faster than beam search, and close to it."""
        trees = self.trees.get("valid")
        if not trees:
            return None
        scored = self.score(trees, self.recipe.decode.greedy())
        return Evaluation(scored.f1, {"f1": scored.f1, "exact": scored.exact})

    def score(self, trees: list[Tree], decode: DecodeConfig) -> BracketScore:
        """Parse the words of reference trees and compare; several processes share the work."""
        words = [tree.words() for tree in self.process_group.shard(trees)]
        tokenizer, symbols = self.vocabularies.tokenizer, self.vocabularies.symbols
        with phase("Parsing", "sentences", len(words)) as parsing:
            model = self.decoder_model(len(words))
            found = parse_words(model, tokenizer, symbols, words, decode, parsing.update)
        parsed = self.process_group.gather_interleaved([str(one.tree) for one in found])
        return score_brackets([Tree.parse(one) for one in parsed], trees)

    def test(self, log: LogFn) -> dict[str, Score]:
        """The test sets, with the recipe's search settings; if there are none, the validation set."""
        return score_test_sets(self.recipe, self.trees, lambda trees: self.score(trees, self.recipe.decode), log)

    def metadata(self) -> dict[str, Any]:
        return {"data": self.fingerprints, "decode": self.recipe.decode.plain()}


def _training_trees(recipe: ParsingRecipe, folder: Path, log: LogFn) -> tuple[list[ItemGroup], list[Tree], list[Tree]]:
    """How many trees have which weight, all trees to train on, each once, and those that are held out."""
    data = recipe.data
    trees = [(source, tree) for source in data.train for tree in source.trees()]
    if not trees:
        locations = ", ".join(source.location for source in data.train)
        raise UserError(f"{locations}: there is no tree to train on; at least one is needed.")
    left, chosen = list(range(len(trees))), list[int]()
    if data.valid is None:
        left, chosen = split_held_out(
            [tree for _, tree in trees],
            data.dev_size,
            "tree",
            log,
            text=lambda tree: " ".join(tree.words()),
            labels=lambda tree: linearize(tree, data.tags),
        )
    training, held_out = ([trees[number] for number in part] for part in (left, chosen))
    if held_out:
        write_text(folder / HELD_OUT_TREES, "".join(f"{tree}\n" for _, tree in held_out))
    groups = [ItemGroup(sum(one is source for one, _ in training), source.weight) for source in data.train]
    return groups, [tree for _, tree in training], [tree for _, tree in held_out]


def _vocabularies_and_model(
    recipe: ParsingRecipe, trees: list[Tree], folder: Path, log: LogFn
) -> tuple[Vocabularies, Seq2SeqLM | None]:
    """Made once per run and saved in its folder, or those of the model in `init_from`."""
    tokenizer_path, symbols_path = folder / "tokenizer.json", folder / SYMBOLS
    if recipe.init_from is not None:
        config, pretrained = recipe.initial_model_config, Parser.load(recipe.init_from)
        pretrained.tokenizer.save(tokenizer_path)
        pretrained.symbols.save(symbols_path)
        log(f"Starting from the weights, tokenizer and symbols of {recipe.init_from}.")
        model = start_from(pretrained.encoder_decoder, config, recipe.init_from, log)
        return Vocabularies(pretrained.tokenizer, pretrained.symbols), model
    if not symbols_path.is_file():
        train_tokenizer(recipe.tokenizer, (source_text(tree.words()) for tree in trees), log).save(tokenizer_path)
        vocabulary = TreeVocabulary.from_trees(trees, recipe.data.tags)
        vocabulary.save(symbols_path)  # last: while it is missing, both are made again
    return Vocabularies(TextTokenizer.load(tokenizer_path), TreeVocabulary.load(symbols_path)), None


def _encoded(vocabularies: Vocabularies, trees: list[Tree], log: LogFn) -> TokenStore:
    """The ids of trees and of their words: read from the cache, or written to it."""
    tokenizer, symbols = vocabularies.tokenizer, vocabularies.symbols
    key = json.dumps([list(map(str, trees)), tokenizer.fingerprint, symbols.symbols])
    sizes = {"source": tokenizer.vocab_size, "target": len(symbols)}
    return cached_store(cache_folder() / "tokens", key, lambda: vocabularies.encode(trees), tuple(sizes), sizes, log)
