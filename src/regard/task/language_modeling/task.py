"""The language modeling task: predict the next token, evaluate by perplexity."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from regard.config import ConfigError
from regard.cost import Workload
from regard.data.batching.row_batch import RowBatch
from regard.data.batching.windows import TokenStream
from regard.data.text.documents import TextConfig, TextCounts, count_text, text_fingerprint
from regard.data.tokenizers.tokenizer import TextTokenizer
from regard.data.tokenizers.training import train_tokenizer
from regard.model import CausalLM, SpecialTokensConfig
from regard.progress import counted
from regard.run import LoadedModel
from regard.score import PerplexityScore, score_perplexity
from regard.task.base import check_ranges, describe_batches, score_test_sets
from regard.task.held_out import Texts
from regard.task.init_from import start_from
from regard.task.initial_embeddings import check_dimensions, start_from_word_vectors
from regard.task.language_modeling.pipeline import TextGenerator
from regard.task.language_modeling.recipe import LanguageModelingRecipe
from regard.task.text_batches import (
    TextBatches,
    evaluation_batches,
    make_token_stream,
    training_and_evaluation_texts,
    training_batches,
)
from regard.train.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from regard.train.estimation import Estimated
from regard.train.loss import Loss, add_aux_loss, cross_entropy, training_loss
from regard.train.step import forward_in_precision
from regard.train.task import Evaluation, Forward, LogFn, Score


@dataclass(frozen=True)
class EvaluationText:
    """A text to evaluate on: its ids, and how much text they represent."""

    stream: TokenStream
    counts: TextCounts
    unpredicted: str
    """The text of the first token, which is never predicted unless documents are packed."""


class LanguageModelingTask:
    """Texts in rows, a language model, and the cross-entropy of the next token."""

    def __init__(
        self,
        recipe: LanguageModelingRecipe,
        tokenizer: TextTokenizer,
        train: TokenStream | None,
        texts: dict[str, EvaluationText],
        fingerprints: dict[str, str],
        model: CausalLM,
        process_group: ProcessGroup = SINGLE_PROCESS,
    ) -> None:
        """`texts` are those to evaluate on: "valid" and the test sets, by name. Without `train`, the model can only be
        tested."""
        self.recipe, self.tokenizer, self.model, self.process_group = recipe, tokenizer, model, process_group
        self.texts, self.fingerprints = texts, fingerprints
        packed = recipe.data.packing == "packed"  # then positions count from the beginning of a document
        length = 0 if packed else recipe.data.context_length
        check_ranges(model, {"text": tokenizer.vocab_size}, length, "data.context_length")
        self.batches: TextBatches
        self._stream = train
        if train is not None:
            self.batches = training_batches(recipe.data, train, recipe.rows, seed=recipe.train.seed, start=self._start)

    @classmethod
    def prepare(cls, recipe: LanguageModelingRecipe, folder: Path, log: LogFn, process_group: ProcessGroup) -> Self:
        """Train or load the tokenizer, tokenize the texts, and build the model with its initial weights."""
        data = recipe.data
        vectors = {} if recipe.word_vectors is None else {"text": recipe.word_vectors}
        process_group.rank0_first(lambda: check_dimensions(recipe.expected_model_config, vectors, folder))
        training, sources = process_group.rank0_first(lambda: training_and_evaluation_texts(recipe, folder, log))
        tokenizer, pretrained = process_group.rank0_first(lambda: _tokenizer_and_model(recipe, training, folder, log))
        fingerprints = {"train": " ".join(map(text_fingerprint, data.train))}
        fingerprints |= {name: text_fingerprint(source) for name, source in sources.items()}
        train = process_group.rank0_first(lambda: _stream(recipe, training, tokenizer, log))
        texts = process_group.rank0_first(
            lambda: {name: _evaluation_text(recipe, source, tokenizer, log) for name, source in sources.items()}
        )
        torch.manual_seed(recipe.train.seed)
        model = recipe.make_model_config(tokenizer.vocab_size).build() if pretrained is None else pretrained.train()
        assert isinstance(model, CausalLM)
        process_group.rank0_first(lambda: start_from_word_vectors(model, vectors, {"text": tokenizer}, folder, log))
        return cls(recipe, tokenizer, train, texts, fingerprints, model, process_group)

    @classmethod
    def for_testing(cls, recipe: LanguageModelingRecipe, loaded: LoadedModel, process_group: ProcessGroup) -> Self:
        """The task with a trained model and its test sets only."""
        generator = TextGenerator(loaded)
        texts = process_group.rank0_first(
            lambda: {
                name: _evaluation_text(recipe, source, generator.tokenizer, lambda message: None)
                for name, source in recipe.test_sources().items()
            }
        )
        return cls(recipe, generator.tokenizer, None, texts, {}, generator.language_model, process_group)

    def describe_data(self) -> str:
        return describe_batches(self.batches.stats, self.recipe.train)

    def workload(self) -> Workload:
        stats = self.batches.stats
        return replace(self.recipe.expected_workload(), batch_size=stats.rows, target_length=stats.length)

    def fit(self) -> int:
        """Estimate a model that is counted instead of trained, from the whole training text."""
        assert self._stream is not None
        assert isinstance(self.model, Estimated)
        packed = self.recipe.data.packing == "packed"  # otherwise the ends of documents are tokens of the text
        self.model.fit(self._stream.tokens, self._stream.offsets if packed else None)
        return len(self._stream)

    def loss(self, forward: Forward, batch: RowBatch) -> Loss:
        """Teacher forcing: each token is predicted from the true tokens before it."""
        config = self.recipe.train.loss
        if self.model.is_bidirectional:
            logits = logits_of_both_directions(forward, batch, config.passes)
            both = in_both_directions(batch)
            return training_loss(logits, both.targets, both.lengths, config)
        return add_aux_loss(
            self.model,
            lambda: training_loss(
                _logits(forward, batch.repeated(config.passes)), batch.targets, batch.lengths, config
            ),
        )

    def nll(self, forward: Forward, batch: RowBatch) -> Loss:
        """Of a model of both directions, the predictions of both count."""
        if self.model.is_bidirectional:
            smoothing, both = self.recipe.train.loss.label_smoothing, in_both_directions(batch)
            return cross_entropy(logits_of_both_directions(forward, batch), both.targets, both.lengths, smoothing)
        return self._forward_nll(forward, batch)

    def _forward_nll(self, forward: Forward, batch: RowBatch) -> Loss:
        """The loss of each token given those before it."""
        smoothing = self.recipe.train.loss.label_smoothing
        return cross_entropy(_logits(forward, batch), batch.targets, batch.lengths, smoothing)

    def validation_batches(self) -> Iterator[RowBatch]:
        """The whole validation text; each token but the first is a target once."""
        valid = self.texts.get("valid")
        return iter(()) if valid is None else self._batches(valid)

    def evaluate(self) -> Evaluation | None:
        """None: the metric is the validation loss, which the trainer computes for every task."""
        return None

    def test(self, log: LogFn) -> dict[str, Score]:
        """The test sets; if there are none, the validation set."""
        return score_test_sets(self.recipe, self.texts, self.score, log)

    @torch.no_grad()
    def score(self, text: EvaluationText) -> PerplexityScore:
        """The perplexity of a text with the current weights; several processes share the work."""
        self.model.eval()
        forward = forward_in_precision(self.model, self.recipe.train.precision)
        nats = tokens = 0.0
        for index, batch in enumerate(counted(self._batches(text), "Computing perplexity", "batches")):
            if index % self.process_group.size == self.process_group.rank:
                loss = self._forward_nll(forward, batch.to(self.model.device))
                nats, tokens = nats + float(loss.nll), tokens + float(loss.count)
        nats, tokens = self.process_group.all_reduce([nats, tokens])
        scored_bytes = text.counts.bytes - len(text.unpredicted.encode())
        scored_characters = text.counts.characters - len(text.unpredicted)
        return score_perplexity(nats, int(tokens), bytes=scored_bytes, characters=scored_characters)

    def metadata(self) -> dict[str, Any]:
        return {"data": self.fingerprints, "context_length": self.recipe.data.context_length}

    def _batches(self, text: EvaluationText) -> Iterator[RowBatch]:
        return evaluation_batches(self.recipe.data, text.stream, start=self._start)

    @property
    def _start(self) -> int | None:
        """The token that packed documents begin with: BOS or, if the model has none, the end of the text before."""
        special: SpecialTokensConfig = self.model.config.special_tokens
        return special.eos if special.bos is None else special.bos


def _logits(forward: Forward, batch: RowBatch) -> Tensor:
    """Next-token logits.  # (rows, length, vocabulary)

    Without packed documents no lengths are needed: padding is on the right, where causal attention does not reach it.
    """
    if batch.documents is None:
        return forward(batch.tokens)
    return forward(batch.tokens, lengths=batch.lengths, documents=batch.documents)


def in_both_directions(batch: RowBatch) -> RowBatch:
    """The rows, and below them the same rows with tokens and targets exchanged.

    The targets are the tokens one place further, so that each of them predicts a token from what follows it.
    """
    tokens, targets = batch.tokens, batch.targets.clamp(min=0)
    return replace(
        batch,
        tokens=torch.cat((tokens, targets)),
        targets=torch.cat((batch.targets, tokens)),
        lengths=batch.lengths.repeat(2),
        count=2 * batch.count,
    )


def logits_of_both_directions(forward: Forward, batch: RowBatch, passes: int = 1) -> Tensor:
    """The logits of the rows of `in_both_directions`, one pass after another.  # (passes · 2 · rows, …)

    The gradient of a step is that of the sum of both directions' losses (Peters et al. 2018, §3.1).
    """
    rows = batch.repeated(passes)
    following = rows.targets.clamp(min=0)
    logits: Tensor = forward(rows.tokens, lengths=rows.lengths, documents=rows.documents, following=following)
    by_pass: Tensor = logits.unflatten(0, (2, passes, -1)).transpose(0, 1).flatten(0, 2)
    return by_pass


def _tokenizer_and_model(
    recipe: LanguageModelingRecipe, training: Texts, folder: Path, log: LogFn
) -> tuple[TextTokenizer, CausalLM | None]:
    """The tokenizer is trained once per run and saved in its folder; with `init_from` both come from that model."""
    path = folder / "tokenizer.json"
    if recipe.init_from is not None:
        config, pretrained = recipe.initial_model_config, TextGenerator.load(recipe.init_from)
        if recipe.data.append_eos and pretrained.language_model.config.special_tokens.eos is None:
            raise ConfigError("data.append_eos", f"{recipe.init_from} has no end-of-sequence token; set this to false.")
        pretrained.tokenizer.save(path)
        log(f"Starting from the weights and the tokenizer of {recipe.init_from}.")
        return pretrained.tokenizer, start_from(pretrained.language_model, config, recipe.init_from, log)
    if not path.is_file():
        train_tokenizer(recipe.tokenizer, islice(training.documents(), recipe.tokenizer.max_examples), log).save(path)
    return TextTokenizer.load(path), None


def _stream(recipe: LanguageModelingRecipe, texts: Texts, tokenizer: TextTokenizer, log: LogFn) -> TokenStream:
    packed, end = recipe.data.packing == "packed", tokenizer.eos if recipe.data.append_eos else None
    return make_token_stream(texts, tokenizer, log, whole=packed, end=end)


def _evaluation_text(
    recipe: LanguageModelingRecipe, source: TextConfig, tokenizer: TextTokenizer, log: LogFn
) -> EvaluationText:
    stream = _stream(recipe, Texts((source,)), tokenizer, log)
    unpredicted = "" if recipe.data.packing == "packed" else tokenizer.decode([int(stream.tokens[0])])
    return EvaluationText(stream, count_text(source), unpredicted)
