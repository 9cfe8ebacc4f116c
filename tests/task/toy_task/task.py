"""The task: pairs of a line and its reversal."""

from pathlib import Path
from typing import Any, Self

import torch

from regard.data.registry import cache_folder
from regard.data.store.token_store import TokenStore, cached_store
from regard.data.tokenizers.tokenizer import TextTokenizer
from regard.data.tokenizers.training import TokenizerConfig, train_tokenizer
from regard.decode import DecodeConfig
from regard.model import EncoderDecoder
from regard.run import LoadedModel
from regard.task.base import score_test_sets
from regard.task.seq2seq import Seq2SeqTask
from regard.task.translation.pipeline import LineTranslator
from regard.train.distributed.process_group import ProcessGroup
from regard.train.task import Evaluation, LogFn, Score
from tests.task.toy_task.recipe import ExactMatch, ReversalRecipe


class ReversalTask(Seq2SeqTask):
    """Lines and an encoder–decoder that reverses them."""

    def __init__(
        self,
        recipe: ReversalRecipe,
        tokenizer: TextTokenizer,
        lines: dict[str, list[str]],
        model: EncoderDecoder,
        process_group: ProcessGroup,
    ) -> None:
        self.recipe, self.tokenizer, self.lines = recipe, tokenizer, lines
        store = encoded(lines["train"], tokenizer) if "train" in lines else None
        super().__init__(recipe.train, 64, store, None, model, process_group)

    @classmethod
    def prepare(cls, recipe: ReversalRecipe, folder: Path, log: LogFn, process_group: ProcessGroup) -> Self:
        lines = {
            name: [line for source in sources for line in source.lines()]
            for name, sources in recipe.data_sources().items()
        }
        if not (folder / "tokenizer.json").is_file():
            train_tokenizer(TokenizerConfig(kind="character"), lines["train"], log).save(folder / "tokenizer.json")
        tokenizer = TextTokenizer.load(folder / "tokenizer.json")
        torch.manual_seed(recipe.train.seed)
        model = recipe.make_model_config(tokenizer.vocab_size).build()
        return cls(recipe, tokenizer, lines, model, process_group)

    @classmethod
    def for_testing(cls, recipe: ReversalRecipe, loaded: LoadedModel, process_group: ProcessGroup) -> Self:
        lines = {name: list(source.lines()) for name, source in recipe.test_sources().items()}
        return cls(recipe, TextTokenizer(loaded.tokenizer), lines, loaded.model, process_group)

    def evaluate(self) -> Evaluation | None:
        return None

    def score(self, lines: list[str]) -> ExactMatch:
        reverser = LineTranslator(self.decoder_model(len(lines)), self.tokenizer, self.tokenizer)
        outputs = [best.text for best, *_ in reverser.translate(lines, DecodeConfig(beam_size=1))]
        right = sum(output == line[::-1] for output, line in zip(outputs, lines, strict=True))
        return ExactMatch(100 * right / len(lines), len(lines))

    def test(self, log: LogFn) -> dict[str, Score]:
        parts = {name: lines for name, lines in self.lines.items() if name != "train"}
        return score_test_sets(self.recipe, parts, self.score, log)

    def metadata(self) -> dict[str, Any]:
        return {"data": dict.fromkeys(self.recipe.data_sources(), "none")}


def encoded(lines: list[str], tokenizer: TextTokenizer) -> TokenStore:
    """The ids of each line and of its reversal."""
    assert tokenizer.eos is not None
    end = tokenizer.eos
    items = [([*tokenizer.encode(line), end], [*tokenizer.encode(line[::-1]), end]) for line in lines]
    sizes = {"source": tokenizer.vocab_size, "target": tokenizer.vocab_size}
    return cached_store(cache_folder() / "toy", "\n".join(lines), lambda: items, tuple(sizes), sizes)
