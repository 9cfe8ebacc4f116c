"""The masked-LM task: an encoder that predicts masked tokens from both sides (Devlin et al. 2019, §3.1)."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from regard.cost import Workload
from regard.data.batching.epochs import MappedBatches
from regard.data.batching.masking import Masking, MaskingConfig, word_starts
from regard.data.batching.row_batch import RowBatch, ScoredPositionsBatch, scored_size
from regard.data.batching.windows import TokenStream
from regard.data.text.documents import text_fingerprint
from regard.data.tokenizers.tokenizer import TextTokenizer
from regard.data.tokenizers.training import train_tokenizer
from regard.errors import UserError
from regard.model import Encoder, EncoderConfig
from regard.progress import counted
from regard.run import LoadedModel
from regard.score import MaskedLMScore
from regard.task.base import check_ranges, describe_batches, score_test_sets
from regard.task.held_out import Texts
from regard.task.masked_lm.recipe import MaskedLMRecipe
from regard.task.text_batches import (
    TextBatches,
    evaluation_batches,
    make_token_stream,
    training_and_evaluation_texts,
    training_batches,
)
from regard.task.text_encoder import (
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


class MaskedLMTask:
    """Masked rows of a text, an encoder, and the loss of its predictions at the masked positions."""

    def __init__(
        self,
        recipe: MaskedLMRecipe,
        tokenizer: TextTokenizer,
        train: TokenStream | None,
        evaluation_data: dict[str, TokenStream],
        fingerprints: dict[str, str],
        model: Encoder,
        process_group: ProcessGroup = SINGLE_PROCESS,
    ) -> None:
        """`evaluation_data` are the texts that are not trained on, by name: "valid" and the test sets. Without `train`,
        the model can only be tested."""
        self.recipe, self.tokenizer, self.model, self.process_group = recipe, tokenizer, model, process_group
        self.evaluation_data, self.fingerprints = evaluation_data, fingerprints
        packed = recipe.data.packing == "packed"  # then positions count from the beginning of a document
        length = 0 if packed else recipe.data.context_length
        check_ranges(model, {"text": tokenizer.vocab_size}, length, "data.context_length")
        masking, seed = recipe.masking, recipe.train.seed
        evaluation = MaskingConfig(
            probability=masking.probability, mask_fraction=1.0, random_fraction=0.0, whole_word=masking.whole_word
        )
        self._evaluation_mask = _Mask(recipe, _masking(evaluation, tokenizer, seed=0))
        self.batches: MappedBatches[TextBatches, ScoredPositionsBatch]
        if train is not None:
            mask = _Mask(recipe, _masking(masking, tokenizer, seed=seed))
            rows = training_batches(recipe.data, train, recipe.rows, seed=seed, start=_ANY_TOKEN)
            self.batches = MappedBatches(rows, mask, mask.masking.key)

    @classmethod
    def prepare(cls, recipe: MaskedLMRecipe, folder: Path, log: LogFn, process_group: ProcessGroup) -> Self:
        """Prepare the tokenizer, the token streams of all texts and the initial model."""
        training, parts = process_group.rank0_first(lambda: training_and_evaluation_texts(recipe, folder, log))
        tokenizer, first = process_group.rank0_first(lambda: _tokenizer_and_encoder(recipe, training, folder, log))
        size = tokenizer.vocab_size if first is None else first.config.vocab_size
        settings = recipe.make_model_config(size, {role: getattr(tokenizer, role) for role in _ROLES})
        fingerprints = {"train": " ".join(map(text_fingerprint, recipe.data.train))}
        fingerprints |= {name: text_fingerprint(part) for name, part in parts.items()}

        def stream(texts: Texts) -> TokenStream:
            return _stream(recipe, texts, tokenizer, settings, log)

        train = process_group.rank0_first(lambda: stream(training))
        evaluation_data = process_group.rank0_first(
            lambda: {name: stream(Texts((part,))) for name, part in parts.items()}
        )
        torch.manual_seed(recipe.train.seed)
        if first is None:
            model = settings.build()
        else:
            assert recipe.init_from is not None
            model = init_from_encoder(first, settings, recipe.init_from, log).train()
        return cls(recipe, tokenizer, train, evaluation_data, fingerprints, model, process_group)

    @classmethod
    def for_testing(cls, recipe: MaskedLMRecipe, loaded: LoadedModel, process_group: ProcessGroup) -> Self:
        """The task with a trained model and its test sets only."""
        model, tokenizer = encoder_and_tokenizer(loaded)
        streams = process_group.rank0_first(
            lambda: {
                name: _stream(recipe, Texts((part,)), tokenizer, model.config, lambda message: None)
                for name, part in recipe.test_sources().items()
            }
        )
        return cls(recipe, tokenizer, None, streams, {}, model, process_group)

    def describe_data(self) -> str:
        sizes = describe_batches(self.batches.stats, self.recipe.train)
        return f"{100 * self.recipe.masking.probability:g} % of {sizes}"

    def workload(self) -> Workload:
        stats = self.batches.stats
        predicted = scored_size(self.recipe.expected_targets, stats.length)
        shape = {"batch_size": stats.rows, "target_length": stats.length, "predicted_tokens": predicted}
        return replace(self.recipe.expected_workload(), **shape)

    def loss(self, forward: Forward, batch: ScoredPositionsBatch) -> Loss:
        """The loss at the masked positions."""
        config = self.recipe.train.loss
        return add_aux_loss(
            self.model,
            lambda: training_loss(_logits(forward, batch.repeated(config.passes)), batch.targets, None, config),
        )

    def nll(self, forward: Forward, batch: ScoredPositionsBatch) -> Loss:
        smoothing = self.recipe.train.loss.label_smoothing
        return cross_entropy(_logits(forward, batch), batch.targets, label_smoothing=smoothing)

    def validation_batches(self) -> Iterator[ScoredPositionsBatch]:
        """The whole validation set, with the same masks each time."""
        valid = self.evaluation_data.get("valid")
        return iter(()) if valid is None else self._evaluation_batches(valid)

    def evaluate(self) -> Evaluation | None:
        """The accuracy at the masked positions of the validation set."""
        valid = self.evaluation_data.get("valid")
        if valid is None:
            return None
        accuracy = self.score(valid).accuracy
        return Evaluation(accuracy, {"accuracy": accuracy})

    def test(self, log: LogFn) -> dict[str, Score]:
        """Score the test sets, or the validation set if there are none."""
        return score_test_sets(self.recipe, self.evaluation_data, self.score, log)

    @torch.no_grad()
    def score(self, stream: TokenStream) -> MaskedLMScore:
        """Score the current model on a text; several processes share the work."""
        self.model.eval()
        forward = forward_in_precision(self.model, self.recipe.train.precision)
        sums = torch.zeros(3, dtype=torch.float64, device=self.model.device)  # masked tokens, correct ones, nats
        for number, batch in enumerate(counted(self._evaluation_batches(stream), "Filling in tokens", "batches")):
            if number % self.process_group.size == self.process_group.rank:
                moved = batch.to(self.model.device)
                logits = _logits(forward, moved)
                correct = (logits.argmax(-1) == moved.targets).sum()  # no token is -1
                loss = cross_entropy(logits, moved.targets)
                sums += torch.stack([loss.count.double(), correct.double(), loss.nll.double()])
        tokens, found, nats = self.process_group.all_reduce(sums.tolist())
        return MaskedLMScore(int(tokens), int(found), nats)

    def metadata(self) -> dict[str, Any]:
        return {"data": self.fingerprints, "context_length": self.recipe.data.context_length}

    def _evaluation_batches(self, stream: TokenStream) -> Iterator[ScoredPositionsBatch]:
        return map(self._evaluation_mask, evaluation_batches(self.recipe.data, stream, start=_ANY_TOKEN))


_ANY_TOKEN = 0
"""The token before a packed document. It is never read: with it, the document's first token becomes a target."""
_ROLES = ("pad", "mask", "sep", "cls")


class _Mask:
    """Masks a batch and keeps the masked positions as the scored ones."""

    def __init__(self, recipe: MaskedLMRecipe, masking: Masking) -> None:
        self.masking = masking
        self._min_scored = recipe.expected_targets

    def __call__(self, batch: RowBatch) -> ScoredPositionsBatch:
        return ScoredPositionsBatch.from_rows(self.masking(batch), self._min_scored)


def _logits(forward: Forward, batch: RowBatch) -> Tensor:
    """The logits at the scored positions.  # (rows, scored, vocabulary)"""
    assert isinstance(batch, ScoredPositionsBatch)
    return forward(batch.tokens, lengths=batch.lengths, documents=batch.documents, positions=batch.scored_positions)


def _masking(config: MaskingConfig, tokenizer: TextTokenizer, seed: int) -> Masking:
    assert tokenizer.mask is not None
    return Masking(
        config,
        mask_id=tokenizer.mask,
        vocab_size=tokenizer.vocab_size,
        special_ids=tokenizer.special_ids,
        seed=seed,
        starts=word_starts(tokenizer) if config.whole_word else None,
    )


def _tokenizer_and_encoder(
    recipe: MaskedLMRecipe, training: Texts, folder: Path, log: LogFn
) -> tuple[TextTokenizer, Encoder | None]:
    """The tokenizer, trained once per run and kept in its folder, or tokenizer and encoder of an earlier model."""
    path = folder / "tokenizer.json"
    if recipe.init_from is not None:
        first, tokenizer = load_encoder(recipe.init_from)
        if tokenizer.mask is None:
            raise UserError(f"{recipe.init_from} has no mask token, so it cannot be trained on masked tokens.")
        tokenizer.save(path)
        return tokenizer, first
    if not path.is_file():
        train_tokenizer(recipe.tokenizer, islice(training.documents(), recipe.tokenizer.max_examples), log).save(path)
    return read_encoder_tokenizer(path), None


def _stream(
    recipe: MaskedLMRecipe, texts: Texts, tokenizer: TextTokenizer, settings: EncoderConfig, log: LogFn
) -> TokenStream:
    """The token stream of some texts. Packed documents have the same special tokens around them as single texts."""
    packed = recipe.data.packing == "packed"
    before, after = surrounding_tokens(settings.special_tokens)
    end = after[0] if after else None
    return make_token_stream(texts, tokenizer, log, whole=packed, before=before if packed else (), end=end)
