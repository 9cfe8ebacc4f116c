"""Train a recipe: from a recipe to a finished run folder.

    recipe.toml         the recipe, with every default filled in
    held-out.*          the part of the training data held out for validation, if the recipe names no other data
    tokenizer.json      the tokenizer (and target_tokenizer.json, if the target side has its own)
    metrics.jsonl       metrics, one JSON object per line; tensorboard/ has the same for TensorBoard
    checkpoints/        what an interrupted run resumes from
    run.json, model.safetensors, README.md   the finished model and its card

A resumed run reuses what is there, and existing files are never lost.
"""

import contextlib
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import torch

from regard.config import ConfigError
from regard.cost import (
    Cost,
    Precision,
    TrainingSetup,
    check_model_fits,
    detect_hardware,
    device_memory,
    estimate,
    is_out_of_memory,
    memory_advice,
)
from regard.data.text.corpus import CorpusConfig
from regard.data.text.vocabulary import VOCABULARY
from regard.errors import UserError
from regard.files import write_text
from regard.kernels.dispatch import select_device
from regard.model import StaticVectorsConfig, count_embedding_parameters, count_parameters
from regard.progress import listen_to_phases, phase
from regard.run import half_weights, read_metadata, save_trained_model
from regard.run.folder import model_metadata
from regard.task.auto import open_model
from regard.task.base import Recipe
from regard.task.claim import claim_folder, settings_of_result
from regard.task.model_card import model_card
from regard.task.recipe_io import Overrides, read_recipe, recipe_name
from regard.train.callback import Callback, CallbackList
from regard.train.config import TrainConfig
from regard.train.distributed.parallel import check_shard_size
from regard.train.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from regard.train.estimation import Estimated, Estimator, count_values
from regard.train.mixed_precision import resolve_precision
from regard.train.policies import TrainResult
from regard.train.task import Score, Task
from regard.train.trainer import Trainer
from regard.train.word_vectors.trainer import VectorTrainer


@dataclass(frozen=True, repr=False)
class RunResult:
    """A finished run, as `regard.train` returns it.

        result = regard.train("quick", out="runs/quick")
        result.scores["test"].bleu
        result.load().translate("Good morning.")

    Every command takes its folder too: `regard translate runs/quick "Good morning."`
    """

    folder: Path
    """The run folder."""
    scores: Mapping[str, Any]
    """By the name of the test set: what the task gives, such as a `TranslationScore`."""
    seconds: float
    """The time that training took."""

    def load(self, device: torch.device | str = "cpu") -> Any:
        """The trained model as the pipeline of its task: `regard.load(result.folder)`."""
        return open_model(self.folder, device)

    def __repr__(self) -> str:
        scores = "".join(f", {name}: {score}" for name, score in self.scores.items())
        return f"RunResult({str(self.folder)!r}{scores}, {self.seconds / 60:.1f} minutes)"


def train(
    recipe: Recipe,
    folder: Path,
    *,
    resume: bool = False,
    device: torch.device | str = "cpu",
    callback: Callback | None = None,
    process_group: ProcessGroup = SINGLE_PROCESS,
) -> RunResult:
    """Train a recipe in a folder, from the beginning or, with `resume`, from the last checkpoint.

    Every process of a `process_group` calls this, with a folder that all of them see; only rank 0 logs and writes.
    """
    callback = callback if callback is not None and process_group.is_rank0 else Callback()
    check_shard_size(recipe.train.parallel, process_group.size)
    device = torch.device(device)
    recipe = _with_precision(recipe, folder, device)
    with contextlib.ExitStack() as stack:
        stack.enter_context(listen_to_phases(callback))
        if not (folder / "run.json").is_file():
            _check_memory(recipe, device, process_group.size)
        fresh = process_group.is_rank0 and not (folder / "recipe.toml").exists()
        if process_group.broadcast_from_rank0(lambda: claim_folder(recipe, folder, resume, stack, callback.log)):
            callback.log(f"{folder}: this run has already finished.")
            return _finished_result(recipe, folder)
        try:
            with phase("Preparing"):
                task = recipe.build_task(folder, callback.log, process_group)
                trainer = _trainer_class(task)(
                    task, recipe.train, folder, device=device, callback=callback, process_group=process_group
                )
        except (UserError, RuntimeError) as error:
            if fresh:
                _remove_prepared_files(recipe, folder)
            if not is_out_of_memory(error):
                raise
            raise UserError(
                f"Out of memory while the model was built on {device}; lower model.width or its layers, or end other "
                "programs that use the device."
            ) from None
        return _train(recipe, trainer, resume)


def _trainer_class(task: Task[Any]) -> Any:
    """What trains a task: its own trainer, if it has one; the estimator for models that are counted; else the one
    trainer of networks."""
    own = getattr(task, "trainer", None)
    if own is not None:
        return own
    return Estimator if isinstance(task.model, Estimated) else Trainer


def _train(recipe: Recipe, trainer: Trainer[Any] | Estimator | VectorTrainer, resume: bool) -> RunResult:
    """Train, test, and write the model into its run folder."""
    task: Any = trainer.task
    callback, folder = trainer.callback, trainer.folder
    # Tokenizers and other vocabularies.
    files = [name for name in recipe.prepared_files if name.endswith(".json") or name == VOCABULARY]
    cost: Cost | None = None
    if isinstance(trainer, Estimator):
        result = trainer.run()
    elif isinstance(trainer, VectorTrainer):
        trainer.checkpoints.run = model_metadata(task.model, _known_origin(recipe, task), folder, files)
        result = trainer.run(resume=resume)
    else:
        result, cost = _take_steps(recipe, trainer, files, resume)
    half, model = recipe.train.save_dtype == "float16", task.model
    if half:  # test the weights as they are saved
        model.load_state_dict({key: value.float() for key, value in half_weights(model).items()})
    scores = task.test(callback.log)
    if trainer.process_group.is_rank0:
        origin = _origin(recipe, task, result, cost, scores, trainer.device)
        with phase("Saving the model"):
            write_text(folder / "README.md", model_card(recipe, origin))
            save_trained_model(model, folder, origin=origin, half=half, files=files)
    return RunResult(folder, scores, result.seconds)


def _take_steps(recipe: Recipe, trainer: Trainer[Any], files: Sequence[str], resume: bool) -> tuple[TrainResult, Cost]:
    """Train by gradients, after a word on the data and the expected cost."""
    task, callback, folder = trainer.task, trainer.callback, trainer.folder
    callback.log(f"Training on {task.describe_data()}")
    has_validation = next(iter(task.validation_batches()), None) is not None
    ignored = [] if has_validation else _ignored_without_validation(recipe.train)
    if ignored:
        callback.log(f"There is no validation data (data.valid), so {' and '.join(ignored)}.")
    cost = log_cost(recipe, task, trainer.device, callback)
    callback.log(trainer.describe_kernels())
    known = model_metadata(task.model, _known_origin(recipe, task), folder, files)
    trainer.checkpoints.run = known | {"final_weights": recipe.train.final_weights}
    return trainer.run(resume=resume, validate_first=recipe.init_from is not None), cost


def train_recipe(
    recipe: Recipe | str | Path,
    *,
    pairs: CorpusConfig | None = None,
    data: str | Path | None = None,
    out: str | Path | None = None,
    overrides: Overrides = (),
    resume: bool = False,
    device: torch.device | str = "auto",
    callbacks: Sequence[Callback] = (),
) -> RunResult:
    """Train a recipe, by name, path or as an object: see `regard.train`."""
    if pairs is not None and data is not None:
        raise UserError("data and pairs, source or target all name the data; give one of them.")
    if isinstance(recipe, Recipe):
        if pairs is not None or data is not None or overrides:
            raise UserError(
                "Your own data and overrides go with a recipe's name or path; change the Recipe object instead."
            )
        folder = Path("runs") / (recipe.name or recipe.task)
    else:
        folder = Path(recipe) if Path(recipe).is_dir() else Path("runs") / recipe_name(recipe)
        recipe = read_recipe(recipe, overrides, pairs, data)
    selected = select_device(device)
    callback = CallbackList(callbacks)
    return train(recipe, folder if out is None else Path(out), resume=resume, device=selected, callback=callback)


def with_parallel(recipe: Recipe, kind: str | None, shard: int | None, processes: int | None = None) -> Recipe:
    """The recipe with another kind of parallelism, or another shard size; the result of training is the same."""
    parallel = recipe.train.parallel
    if kind is None and shard is None:
        check_shard_size(parallel, processes or 1)
        return recipe
    kind = kind or parallel.kind
    changes = {"kind": kind, "shard": shard or (parallel.shard if kind == parallel.kind else None)}
    try:
        train = TrainConfig(**(recipe.train.plain() | {"parallel": parallel.plain() | changes}))
    except ConfigError as error:
        raise ConfigError(f"train.{error.key}", error.problem) from None
    check_shard_size(train.parallel, processes or 1)
    return recipe.model_copy(update={"train": train})


def _with_precision(recipe: Recipe, folder: Path, device: torch.device) -> Recipe:
    """The recipe with its precision decided: that of the run in the folder, if there is one, or that of the device."""
    if recipe.train.precision != "auto":
        return recipe
    saved = folder / "recipe.toml"
    asked = read_recipe(saved).train.precision if saved.is_file() else "auto"
    changes = {"precision": resolve_precision(asked, device)}
    return recipe.model_copy(update={"train": recipe.train.model_copy(update=changes)})


def _ignored_without_validation(config: TrainConfig) -> list[str]:
    """What happens to settings that need validation data."""
    ignored = []
    if config.final_weights == "best":
        ignored.append('train.final_weights = "best" saves the last weights')
    if config.patience:
        ignored.append(f"train.patience = {config.patience} never stops it early")
    return ignored


def _remove_prepared_files(recipe: Recipe, folder: Path) -> None:
    """Clean up after a run that could not start, so that the next attempt finds an empty folder."""
    for name in (*recipe.prepared_files, "recipe.toml"):
        (folder / name).unlink(missing_ok=True)


@phase("Checking whether the model fits into memory")
def _check_memory(recipe: Recipe, device: torch.device, processes: int) -> None:
    """Refuse a model that does not fit the device, before anything is written, read or built.

    With `init_from` the model is that of the folder, which is loaded first.
    """
    if isinstance(recipe.expected_model_config, StaticVectorsConfig):  # its vocabulary is not known before
        return
    if recipe.init_from is None and device.type in ("cpu", "cuda"):
        setup = _training_setup(recipe, processes, "cuda" if device.type == "cuda" else "cpu")
        check_model_fits(recipe.expected_model_config, recipe.expected_workload(), setup, device_memory(device))


def _training_setup(recipe: Recipe, processes: int, device: Literal["cpu", "cuda"] = "cuda") -> TrainingSetup:
    config = recipe.train
    sharded = processes > 1 and config.parallel.kind == "fsdp"
    return TrainingSetup(
        _precision(config, device),
        config.optimizer.kind,
        device=device,
        processes=processes,
        shards=(config.parallel.shard or processes) if sharded else 1,
        activation_checkpointing=config.activation_checkpointing,
    )


def _precision(config: TrainConfig, device: Literal["cpu", "cuda"]) -> Precision:
    """The precision on any GPU or CPU of today."""
    if config.precision == "auto":
        return "bfloat16" if device == "cuda" else "float32"
    return config.precision


def expected_cost(recipe: Recipe, device: Literal["cpu", "cuda"] = "cuda") -> Cost:
    """The cost of a run, estimated from the recipe before the data has been read; `device` decides its precision if
    the recipe does not."""
    setup = replace(_training_setup(recipe, processes=1), precision=_precision(recipe.train, device))
    return estimate(recipe.expected_model_config, recipe.expected_workload(), setup)


@phase("Estimating the cost")
def log_cost(recipe: Recipe, task: Task[Any], device: torch.device, callback: Callback) -> Cost:
    """Estimate the cost of the run, of all processes together, and log it before training."""
    config = recipe.train
    cost = estimate(task.model.config, task.workload(), _training_setup(recipe, task.process_group.size))
    hardware = detect_hardware(device)
    cuda_graphs = device.type == "cuda" and config.cuda_graphs and cost.supports_cuda_graphs  # as the trainer decides
    callback.log(f"Estimate: {cost.describe(hardware, cuda_graphs=cuda_graphs)}.")
    advice = memory_advice(cost, hardware, cuda_graphs=cuda_graphs)
    if advice is not None:
        callback.log(advice)
    return cost


def _known_origin(recipe: Recipe, task: Task[Any]) -> dict[str, Any]:
    """What is known of a model's origin before it is trained; its checkpoints record it."""
    return {"recipe": recipe.name, "task": recipe.task, "seed": recipe.train.seed, **task.metadata()}


def _origin(
    recipe: Recipe,
    task: Task[Any],
    result: TrainResult,
    cost: Cost | None,
    scores: Mapping[str, Score],
    device: torch.device,
) -> dict[str, Any]:
    """How a model was made, as plain data for run.json and the model card."""
    import regard

    processes = task.process_group.size
    parameters = count_values(task.model) if isinstance(task.model, Estimated) else count_parameters(task.model)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return {
        **_known_origin(recipe, task),
        "train": settings_of_result(recipe.train),
        "steps": result.steps,
        "stopped_early": result.stopped_early,
        "final_weights": result.final_weights.asdict(),
        "tokens": result.tokens,
        "batch_splits": result.batch_splits,
        "seconds": round(result.seconds, 1),
        "flops": None if cost is None else cost.flops_per_step * result.steps,
        "parameters": parameters,
        "non_embedding": parameters - count_embedding_parameters(task.model),
        "device": name if processes == 1 else f"{processes} × {name}",
        "versions": {"regard": regard.__version__, "torch": torch.__version__, "python": platform.python_version()},
        "finished": time.strftime("%Y-%m-%d", time.gmtime()),
        "scores": {name: score.rounded() for name, score in scores.items()},
    }


def _finished_result(recipe: Recipe, folder: Path) -> RunResult:
    origin = read_metadata(folder)["origin"]
    names = [field.name for field in fields(recipe.score_type)]
    scores = {
        test: recipe.score_type(**{name: values[name] for name in names if name in values})
        for test, values in origin.get("scores", {}).items()
    }
    return RunResult(folder, scores, origin.get("seconds", 0.0))
