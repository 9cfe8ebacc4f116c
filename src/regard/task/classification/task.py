"""The classification tasks: an encoder with a head for texts or tokens, trained from scratch or fine-tuned."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self, cast

import torch
from torch import Tensor

from regard.cost import Workload
from regard.data.batching.row_batch import RowBatch
from regard.data.labels.batches import LABEL_SIDES, TAG_SIDES, LabeledBatches, label_items, label_set, tag_items
from regard.data.labels.labeled_texts import LabeledText
from regard.data.labels.tagged_sentences import TaggedSentence
from regard.data.registry import cache_folder
from regard.data.store.token_store import TokenStore, cached_store
from regard.data.tokenizers.tokenizer import TextTokenizer
from regard.data.tokenizers.training import train_tokenizer
from regard.errors import UserError
from regard.model import ClassificationHeadConfig, Encoder, EncoderConfig
from regard.progress import phase
from regard.run import LoadedModel
from regard.score import AccuracyScore, score_accuracy
from regard.task.base import check_labels, check_ranges, describe_batches, report_unknown, score_test_sets
from regard.task.classification.pipeline import text_logprobs, word_logprobs
from regard.task.classification.recipe import ClassificationRecipe
from regard.task.held_out import HELD_OUT, split_held_out, write_held_out
from regard.task.text_encoder import (
    EXPECTED_SPECIAL_IDS,
    encoder_and_tokenizer,
    init_from_encoder,
    load_encoder,
    read_encoder_tokenizer,
    surrounding_tokens,
)
from regard.train.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from regard.train.loss import Loss, add_aux_loss, cross_entropy, training_loss
from regard.train.step import forward_in_precision
from regard.train.task import Evaluation, Forward, LogFn, Score

_VALIDATION_TOKENS = 8192

Sentence = LabeledText | TaggedSentence


class ClassificationTask:
    """Labeled texts or tagged sentences, an encoder with a classification head, its loss and accuracy."""

    def __init__(
        self,
        recipe: ClassificationRecipe,
        tokenizer: TextTokenizer,
        train: TokenStore | None,
        valid: TokenStore | None,
        evaluation_data: dict[str, list[Sentence]],
        fingerprints: dict[str, str],
        model: Encoder,
        process_group: ProcessGroup = SINGLE_PROCESS,
    ) -> None:
        """`evaluation_data` are the sentences that are not trained on, by name: "valid" and the test sets. Without
        `train`, the model can only be tested."""
        self.recipe, self.tokenizer, self.model, self.process_group = recipe, tokenizer, model, process_group
        self.valid, self.evaluation_data, self.fingerprints = valid, evaluation_data, fingerprints
        if train is not None:
            self.batches = self._training_batches(train)
            check_ranges(model, {}, self._longest(train), "data.max_length")  # the store has checked ids and labels

    def _training_batches(self, train: TokenStore) -> LabeledBatches:
        config, max_length = self.recipe.train, self.recipe.parts.max_length
        try:
            return LabeledBatches(
                train,
                config.batch_tokens,
                seed=config.seed,
                length_buckets=config.length_buckets,
                max_length=max_length,
            )
        except UserError as error:
            raise UserError(
                f"{error} Raise data.max_length ({max_length}) or train.batch_tokens ({config.batch_tokens})."
            ) from None

    def _longest(self, train: TokenStore) -> int:
        """The length of the longest row that is trained or validated on."""
        lengths = train.lengths(train.sides[0])
        longest = int(lengths[lengths <= self.recipe.parts.max_length].max(initial=0))
        if self.valid is not None:  # all of it is read, however long it is
            longest = max(longest, int(self.valid.lengths(self.valid.sides[0]).max(initial=0)))
        return longest

    @classmethod
    def prepare(cls, recipe: ClassificationRecipe, folder: Path, log: LogFn, process_group: ProcessGroup) -> Self:
        """Prepare the sentences, the tokenizer, the token stores and the initial model."""
        data = recipe.parts
        train = [sentence for part in data.train for sentence in recipe.sentences(part)]
        labels = label_set(train)
        parts: dict[str, Any] = dict(data.test) if data.valid is None else {"valid": data.valid, **data.test}
        evaluation_data = {name: list(recipe.sentences(part)) for name, part in parts.items()}
        if data.valid is None:
            train, held_out = process_group.rank0_first(lambda: _hold_out(train, folder, data.dev_size, log))
            evaluation_data |= {"valid": held_out} if held_out else {}
        for name, sentences in evaluation_data.items():
            unknown = _unknown_labels(sentences, labels)
            none_known = len(unknown) == len({label for one in sentences for label in _labels(one)})
            report_unknown(name, unknown, log, none_known=none_known)
        tokenizer, first = process_group.rank0_first(lambda: _tokenizer_and_encoder(recipe, train, folder, log))
        size = tokenizer.vocab_size if first is None else first.config.vocab_size
        settings = recipe.make_model_config(
            size, {role: getattr(tokenizer, role) for role in EXPECTED_SPECIAL_IDS}, labels
        )

        def store(sentences: Sequence[Sentence]) -> TokenStore:
            return _store(sentences, tokenizer, settings, data.max_length, log)

        train_store = process_group.rank0_first(lambda: store(train))
        valid = evaluation_data.get("valid")
        valid_store = None if valid is None else process_group.rank0_first(lambda: store(valid))
        fingerprints = {"train": _digest(train)} | {name: _digest(part) for name, part in evaluation_data.items()}
        torch.manual_seed(recipe.train.seed)
        if first is None:
            model = settings.build()
        else:
            assert recipe.init_from is not None
            model = init_from_encoder(first, settings, recipe.init_from, log).train()
        return cls(recipe, tokenizer, train_store, valid_store, evaluation_data, fingerprints, model, process_group)

    @classmethod
    def for_testing(cls, recipe: ClassificationRecipe, loaded: LoadedModel, process_group: ProcessGroup) -> Self:
        """The task with a trained model and its test sets only."""
        model, tokenizer = encoder_and_tokenizer(loaded)
        sentences = {name: list(recipe.sentences(part)) for name, part in recipe.test_sources().items()}
        for name, part in recipe.test_sources().items():
            check_labels(part, (label for one in sentences[name] for label in _labels(one)), model.config.labels)
        return cls(recipe, tokenizer, None, None, sentences, {}, model, process_group)

    def describe_data(self) -> str:
        return f"{len(self.model.config.labels):,} labels, {describe_batches(self.batches.stats, self.recipe.train)}"

    def workload(self) -> Workload:
        config, shape = self.recipe.train, self.batches.source.mean_shape
        return Workload(
            shape.rows,
            shape.lengths[0],
            steps=config.steps,
            grad_accumulation=config.grad_accumulation,
            batch_tokens=max(config.batch_tokens, shape.lengths[0]),
            forward_passes=config.loss.passes,
        )

    def loss(self, forward: Forward, batch: RowBatch) -> Loss:
        config = self.recipe.train.loss
        return add_aux_loss(
            self.model,
            lambda: training_loss(_logits(forward, batch.repeated(config.passes)), _targets(batch), None, config),
        )

    def nll(self, forward: Forward, batch: RowBatch) -> Loss:
        smoothing = self.recipe.train.loss.label_smoothing
        return cross_entropy(_logits(forward, batch), _targets(batch), label_smoothing=smoothing)

    def validation_batches(self) -> Iterator[RowBatch]:
        """The whole validation set, however long its sentences are."""
        if self.valid is None:
            return iter(())
        max_length = int(self.valid.lengths(self.valid.sides[0]).max())
        return LabeledBatches(self.valid, max(_VALIDATION_TOKENS, max_length), length_buckets=16).epoch()

    def evaluate(self) -> Evaluation | None:
        """The accuracy on the validation set."""
        valid = self.evaluation_data.get("valid")
        if valid is None:
            return None
        accuracy = self.score(valid).accuracy
        return Evaluation(accuracy, {"accuracy": accuracy})

    def test(self, log: LogFn) -> dict[str, Score]:
        """Score the test sets, or the validation set if there are none."""
        return score_test_sets(self.recipe, self.evaluation_data, self.score, log)

    def score(self, sentences: Sequence[Sentence]) -> AccuracyScore:
        """Score the current model on some sentences; several processes share the work.

        A label that the model does not have counts as an error, but not in the loss, where it would be infinite.
        """
        self.model.eval()
        shard = self.process_group.shard(sentences)
        forward = forward_in_precision(self.model, self.recipe.train.precision)
        with phase("Classifying", "texts", len(shard)) as current:
            settings: dict[str, Any] = {"forward": forward, "progress": current.update}
            if isinstance(self.model.config.head, ClassificationHeadConfig):
                texts = [cast(LabeledText, one).text for one in shard]
                logprobs = text_logprobs(self.model, self.tokenizer, texts, self.recipe.parts.max_length, **settings)
            else:
                sentences_words = [cast(TaggedSentence, one).words for one in shard]
                logprobs = word_logprobs(self.model, self.tokenizer, sentences_words, **settings)
        known = self.model.config.labels
        labels = (*known, *_unknown_labels(sentences, known))
        label_ids = {label: number for number, label in enumerate(labels)}
        predicted: list[int] = []
        truth: list[int] = []
        nats = 0.0
        for one, row in zip(shard, logprobs, strict=True):
            ids = [label_ids[label] for label in _labels(one)]
            scored = torch.tensor([(place, number) for place, number in enumerate(ids) if number < len(known)])
            nats -= float(row.double()[tuple(scored.T)].sum()) if len(scored) else 0.0
            predicted += row.argmax(dim=-1).tolist()
            truth += ids
        gathered_scores = self.process_group.all_gather_object([predicted, truth, nats])
        return score_accuracy(
            [label for rank_predicted, _, _ in gathered_scores for label in rank_predicted],
            [label for _, rank_truth, _ in gathered_scores for label in rank_truth],
            labels,
            sum(rank_nats for _, _, rank_nats in gathered_scores),
            known=len(known),
            unit=self.recipe.counted_unit,
        )

    def metadata(self) -> dict[str, Any]:
        """Besides the model, a text's label depends on where it is truncated."""
        return {"data": self.fingerprints, "max_length": self.recipe.parts.max_length}


def _hold_out(
    sentences: Sequence[Sentence], folder: Path, dev_size: int, log: LogFn
) -> tuple[list[Sentence], list[Sentence]]:
    """The sentences to train on, and those that are held out, which the run folder records."""
    noun = "text" if isinstance(sentences[0], LabeledText) else "sentence"
    numbers = split_held_out(sentences, dev_size, noun, log, text=_text, labels=_labels)
    train, held_out = ([sentences[number] for number in part] for part in numbers)
    if held_out:
        write_held_out(folder / HELD_OUT, (one._asdict() for one in held_out))
    return train, held_out


def _text(sentence: Sentence) -> str:
    return sentence.text if isinstance(sentence, LabeledText) else " ".join(sentence.words)


def _labels(sentence: Sentence) -> Sequence[str]:
    return (sentence.label,) if isinstance(sentence, LabeledText) else sentence.tags


def _unknown_labels(sentences: Iterable[Sentence], known: Sequence[str]) -> list[str]:
    """The labels of sentences that are not among the known ones, sorted."""
    return sorted({label for sentence in sentences for label in _labels(sentence)} - set(known))


def _logits(forward: Forward, batch: RowBatch) -> Tensor:
    """Logits of the labels for each token, or for each row as if it had one token.  # (rows, length or 1, labels)"""
    logits = forward(batch.tokens, lengths=batch.lengths)
    return logits[:, None] if batch.targets.dim() == 1 else logits


def _targets(batch: RowBatch) -> Tensor:
    """# (rows, length or 1)"""
    return batch.targets[:, None] if batch.targets.dim() == 1 else batch.targets


def _tokenizer_and_encoder(
    recipe: ClassificationRecipe, sentences: Sequence[Sentence], folder: Path, log: LogFn
) -> tuple[TextTokenizer, Encoder | None]:
    """The tokenizer, trained once per run and kept in its folder, or tokenizer and encoder of an earlier model."""
    path = folder / "tokenizer.json"
    if recipe.init_from is not None:
        first, tokenizer = load_encoder(recipe.init_from)
        tokenizer.save(path)
        return tokenizer, first
    if not path.is_file():
        train_tokenizer(recipe.tokenizer, map(_text, sentences), log).save(path)
    return read_encoder_tokenizer(path), None


def _store(
    sentences: Sequence[Sentence], tokenizer: TextTokenizer, settings: EncoderConfig, max_length: int, log: LogFn
) -> TokenStore:
    """The cached token store of some sentences and their labels."""
    prefix, suffix = surrounding_tokens(settings.special_tokens)
    labels = settings.labels
    sides = LABEL_SIDES if isinstance(settings.head, ClassificationHeadConfig) else TAG_SIDES
    key = json.dumps([_digest(sentences), tokenizer.fingerprint, labels, prefix, suffix, max_length])
    sizes = {sides[0]: settings.vocab_size, sides[1]: len(labels) + 1}

    def items() -> Iterator[tuple[list[int], list[int]]]:
        if sides == LABEL_SIDES:
            texts = cast(Sequence[LabeledText], sentences)
            return label_items(texts, tokenizer, labels, prefix=prefix, suffix=suffix, max_length=max_length)
        return tag_items(cast(Sequence[TaggedSentence], sentences), tokenizer, labels, prefix=prefix, suffix=suffix)

    return cached_store(cache_folder() / "tokens", key, items, sides, sizes, log)


def _digest(sentences: Sequence[Sentence]) -> str:
    """SHA-256 of the sentences."""
    return hashlib.sha256(json.dumps(sentences, ensure_ascii=False).encode()).hexdigest()
