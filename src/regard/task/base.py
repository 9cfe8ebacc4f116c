"""The base of all recipes, and what every task shares.

A recipe is a file that says everything a run depends on, and what to expect of it. The base class holds what is common
to all tasks; each task's own recipe (`task/<task>/recipe.py`) adds its data, its model and its evaluation.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from pydantic import model_validator

from regard.config import Config, ConfigError
from regard.cost import Workload
from regard.data.source import DataSource
from regard.errors import UserError, listed
from regard.model import AnyModelConfig, EncoderDecoderConfig, Seq2SeqConfig
from regard.progress import phase
from regard.run import LoadedModel
from regard.task.expect import ExpectConfig
from regard.task.init_from import check_fits, has_model, initial_settings, merge_settings, tokenizer_settings
from regard.task.registry import get_task
from regard.train.config import TrainConfig
from regard.train.distributed.process_group import ProcessGroup
from regard.train.optimizer import ScheduleConfig
from regard.train.task import LogFn, Score, Task

SPECIAL_IDS = {"pad": 0, "bos": 1, "eos": 2}
"""The ids that regard's tokenizers give to special tokens."""
GIVEN = "given"
"""The name of a test set that is a user's file."""

AnyConfig = TypeVar("AnyConfig", bound=Config)
Part = TypeVar("Part")


class Recipe(Config):
    """What every recipe has, whatever its task.

    A subclass adds `data`, whose `train`, `valid` and `test` are data sources, and `model`, the settings of the model
    as plain data: what is left out is filled in from the data or from the defaults.
    """

    name: str = ""
    """The name of the recipe. By default, that of its file."""
    description: str
    """One sentence about the recipe, for `regard recipes` and the model card."""
    limitations: str = ""
    """What a model of this recipe cannot do, for the model card."""
    data_needed: str = ""
    """What data to bring, and where to get it, if the recipe's own cannot be downloaded or only stands in for it."""
    task: str
    """What the model is trained to do. It selects the keys of the other tables."""
    init_from: str | None = None
    """A run folder or pretrained model whose weights (and tokenizers) this run starts from."""
    train: TrainConfig
    expect: ExpectConfig | None = None

    usage_example: ClassVar[str]
    """For the model card: how to use the model, with THIS-FOLDER in place of its path."""
    data_options: ClassVar[str] = "--data FILE"
    """The options of `regard train` that name a user's own data."""
    counted_unit: ClassVar[str] = "target tokens"
    """What the loss is averaged over."""
    prepared_files: ClassVar[tuple[str, ...]] = ()
    """Files that preparing the task may write into the run folder."""
    held_out_file: ClassVar[str] = "held-out"
    """The file in the run folder with what was held out of the training data, if anything was."""
    score_type: ClassVar[type[Score]]
    """The score of a test set."""
    unused_train_keys: ClassVar[Mapping[str, str]] = {}
    """Keys of [train] that have no effect for this task, and why; giving one is an error."""
    model_keys_from_data: ClassVar[tuple[str, ...]] = ()
    """Keys of the model's config (dotted, if nested) that follow from the data; giving one in [model] is an error."""
    model_kinds: ClassVar[tuple[Mapping[str, Any], ...]] = ()
    """The registries of the kinds of models that the task has: a kind that is registered later is one of them, too."""
    new_model_keys: ClassVar[tuple[str, ...]] = ()
    """Keys of the model's config that are never taken from the model in `init_from`."""
    head: ClassVar[Mapping[str, str]] = {}
    """The kind of the model's head, and its defaults, if the task determines them."""

    if TYPE_CHECKING:  # declared by the subclasses
        data: Any
        model: dict[str, Any]

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Its name and description; `regard.read_recipe(NAME).plain()` gives all settings."""
        return iter([("name", self.name), ("task", self.task), ("description", self.description)])

    @model_validator(mode="after")
    def _model_can_be_built(self) -> Self:
        try:
            _ = self.expected_model_config
        except ConfigError:
            if self.init_from is not None and has_model(self.init_from):
                _ = self.initial_model_config  # if its settings are the reason, this says so
            raise
        return self

    @model_validator(mode="after")
    def _every_key_has_an_effect(self) -> Self:
        for key, reason in self.unused_train_keys.items():
            found = getattr(self.train, key)
            if found != TrainConfig.model_fields[key].default:
                raise ConfigError(f"train.{key}", f"found {found!r}, but {reason}; leave this key out.")
        if self.train.expected_gleu is not None and not self.has_source:
            raise ConfigError(
                "train.expected_gleu", "it compares outputs for a source with references; leave this key out."
            )
        if self.train.loss.r_drop and self.init_from is None and not _has_dropout(self.expected_model_config.plain()):
            raise ConfigError(
                "train.loss.r_drop",
                "the two passes of R-Drop differ only by dropout, and this model has none; set a dropout, or leave "
                "this key out.",
            )
        return self

    @classmethod
    def known_kinds(cls) -> tuple[str, ...]:
        """The kinds of models that [model] and `init_from` may name; the first is the default."""
        return tuple(kind for registry in cls.model_kinds for kind in registry)

    @property
    def has_source(self) -> bool:
        """Whether the model has a source and a target."""
        return isinstance(self.expected_model_config, EncoderDecoderConfig | Seq2SeqConfig)

    @property
    def expected_model_config(self) -> AnyModelConfig:
        """The model's config before the data has been read: what follows from the data is as configured, or guessed."""
        raise NotImplementedError

    def expected_workload(self) -> Workload:
        """The shape of the batches before the data has been read."""
        raise NotImplementedError

    def data_sources(self) -> Mapping[str, Sequence[DataSource]]:
        """The sources of the training data, of each test set, and of the validation set if there is one, by name."""
        train, valid = self.data.train, self.data.valid
        sources = {"train": train if isinstance(train, tuple) else (train,)}
        sources |= {name: (source,) for name, source in self.data.test.items()}
        return sources if valid is None else sources | {"valid": (valid,)}

    def describe_needed_data(self) -> str:
        """What data to bring before this recipe can be trained, for `regard recipes`; empty if all of it is here or
        can be downloaded."""
        if self.data_needed:
            return self.data_needed
        missing = self._unobtainable_sources()
        names = list(dict.fromkeys(source.dataset or source.location for source in missing))
        return f"{self.data_options} ({', '.join(names)} cannot be downloaded)" if names else ""

    def _unobtainable_sources(self) -> list[DataSource]:
        return [source for part in self.data_sources().values() for source in part if not source.is_obtainable()]

    def _check_data(self) -> None:
        """Refuse data that can be neither found nor downloaded, and say what to train on instead."""
        for source in self._unobtainable_sources():
            if self.data_needed and source.dataset is None:
                raise UserError(f"{source.location}: there is no such file. Bring your own data: {self.data_needed}")
            if source.dataset is not None:
                try:
                    source.resolve(*source.paths_given())
                except UserError as error:
                    raise UserError(f"{error} To train on your own data instead, add {self.data_options}.") from None

    def test_sources(self) -> dict[str, Any]:
        """The test sets by name; if there are none, the validation set."""
        return dict(self.data.test) or {"valid": self.data.valid}

    def held_out_source(self, folder: Path) -> Any:
        """The part of the training data that the run in a folder has held out for validation; None if there is none."""
        path = folder / self.held_out_file
        return self.held_out_config(str(path)) if self.data.valid is None and path.is_file() else None

    def held_out_config(self, path: str) -> DataSource:
        """How the file of held-out data is read."""
        raise NotImplementedError

    @classmethod
    def user_data_config(cls, path: str, data: Mapping[str, Any]) -> dict[str, Any]:
        """The data settings that train on a user's own file or folder; `data` are those of the recipe."""
        return {"train": [{"path": path}]}

    @classmethod
    def for_model(cls, loaded: LoadedModel, path: str) -> Self:
        """A recipe by which a model that has none can be tested on a user's file: `evaluation_settings` say how."""
        data = cls.model_fields["data"].annotation
        assert data is not None
        train = TrainConfig(steps=1, precision="float32", schedule=ScheduleConfig(kind="constant", lr=1.0))
        recipe = cls.model_construct(description="", train=train, data=data(**cls.user_data_config(path, {})))
        return recipe.with_test_data(path, cls.evaluation_settings(loaded))

    @classmethod
    def evaluation_settings(cls, loaded: LoadedModel) -> dict[str, Any]:
        """The data settings for a model without a recipe: what the model itself implies."""
        return {}

    def with_test_data(self, path: str, settings: Mapping[str, Any]) -> Self:
        """This recipe with a user's file or folder as its only test set, "given", read as its own data is.

        `settings` change how it is read (`columns`, `unit` …) or what holds for all data (`context_length` …).
        """
        data = self.data
        source = self.data_sources()[next(iter(data.test), "train")][0]
        of_file = {key: value for key, value in settings.items() if key in type(source).model_fields}
        others = {key: value for key, value in settings.items() if key not in of_file}
        for key in ("train", "valid", "test"):
            if key in others:
                raise ConfigError(f"data.{key}", "the data to test on is the given file; leave this key out.")
        try:
            given = source.for_file(path, of_file)
            data = type(data)(**data.plain() | others) if others else data
        except ConfigError as error:
            raise ConfigError(f"data.{error.key}", error.problem) from None
        data = data.model_copy(update={"valid": None, "test": {GIVEN: given}})
        return self.model_copy(update={"data": data})

    def describe_score(self, score: Any) -> str:
        """What was counted for a score, in words, and the settings that it depends on."""
        return ""

    def score_settings(self) -> dict[str, Any]:
        """The settings that a score depends on, besides model and data, as plain data."""
        return {}

    def build_task(self, folder: Path, log: LogFn, process_group: ProcessGroup) -> Task[Any]:
        """Prepare the data and build the model. Every process calls this; files are written by one of them."""
        if self.init_from is not None:
            _ = self.initial_model_config
        self._check_data()
        task: Task[Any] = get_task(self.task).task_class().prepare(self, folder, log, process_group)
        return task

    def resolved(self) -> dict[str, Any]:
        """The recipe as plain data, with every default, and everything that comes from `init_from`, filled in."""
        model = self.expected_model_config.plain()
        values = self.plain() | {"model": {key: model[key] for key in model if key not in self.model_keys_from_data}}
        if "tokenizer" in values and self.init_from is not None and has_model(self.init_from):
            new = values["tokenizer"].get("new_tokens", 0)
            values["tokenizer"] = tokenizer_settings(self.init_from)
            if new:
                values["tokenizer"] = {**(values["tokenizer"] or {}), "new_tokens": new}
        return values

    @property
    def model_settings(self) -> dict[str, Any]:
        """[model], with what it leaves out filled in from the model in `init_from`, if any."""
        for key in self.model_keys_from_data:
            if key in self.model:
                raise ConfigError(f"model.{key}", "this follows from the data; leave this key out.")
        # The recipe of a finished run says everything, so the model that it started from may be gone.
        if self.init_from is None or (self.model and not has_model(self.init_from)):
            return dict(self.model)
        first = initial_settings(self.init_from, self.known_kinds())
        absent = (*self.model_keys_from_data, *self.new_model_keys)
        return merge_settings({key: value for key, value in first.items() if key not in absent}, self.model)

    def initial_vocab_size(self, key: str = "vocab_size") -> int | None:
        """The vocabulary of the model in `init_from`, if any."""
        if self.init_from is None or not has_model(self.init_from):
            return None
        size: int | None = initial_settings(self.init_from, self.known_kinds()).get(key)
        return size

    @property
    def initial_model_config(self) -> AnyModelConfig:
        """The config of the model in `init_from` with the settings of [model]; an error if the two, or the tokenizers,
        do not fit. Vocabulary, special tokens and head are those of that model."""
        assert self.init_from is not None
        first = initial_settings(self.init_from, self.known_kinds())
        given = {key: value for key, value in self.model.items() if key not in self.new_model_keys}
        tokenizer = getattr(self, "tokenizer", None) if "tokenizer" in self.model_fields_set else None
        given_tokenizer = {} if tokenizer is None else tokenizer.model_dump(mode="json", exclude_unset=True)
        return check_fits(self.init_from, first, given, given_tokenizer)

    def read_model_kind(self, kinds: Mapping[str, type[AnyConfig]], default: str, **from_data: Any) -> AnyConfig:
        """The same for one of several architectures, which `kind` in [model] selects."""
        kind = self.model_settings.get("kind", default)
        if kind not in kinds:
            near = get_close_matches(str(kind), kinds, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(kinds)}."
            raise ConfigError("model.kind", f"found {kind!r}; {hint}")
        return self.read_model_config(kinds[kind], **from_data)

    def read_model_config(self, config: type[AnyConfig], **from_data: Any) -> AnyConfig:
        """The model's config: `model_settings` and what follows from the data. Errors name the key in the recipe."""
        settings = self.model_settings
        try:
            return config(**settings, **from_data)
        except ConfigError as error:
            raise ConfigError(f"model.{error.key}", error.problem) from None


def check_ranges(model: Any, vocab_sizes: Mapping[str, int], longest: int, key: str) -> None:
    """Refuse data whose ids or positions a model does not have, once, before any of it is on a GPU.

    There an index out of range ends the process. `vocab_sizes` are those of the data by side, `longest` is the length
    of its longest row, and `key` the setting that limits it.
    """
    config = model.config
    for side, size in vocab_sizes.items():
        known = (side == "source" and getattr(config, "source_vocab_size", None)) or config.vocab_size
        if size > known:
            raise UserError(
                f"The tokenizer of the {side} has {size:,} ids, but the model's vocabulary has {known:,}; start from a "
                "model that has this tokenizer."
            )
    positions = model.max_positions
    if positions is not None and longest > positions:
        raise UserError(
            f"Rows have up to {longest:,} tokens ({key}), but the model has {positions:,} positions "
            f"({model.max_positions_key}); lower {key}, or raise the number of positions."
        )


def score_test_sets(
    recipe: Recipe, parts: Mapping[str, Part], score: Callable[[Part], Score], log: LogFn
) -> dict[str, Score]:
    """Score each test set among `parts`, or the validation set if there is no other; log each result."""
    scores: dict[str, Score] = {}
    for part in [part for part in parts if part != "valid"] or parts:
        name = "held-out" if part == "valid" and recipe.data.valid is None else part
        with phase(f"Scoring {name}"):
            scores[name] = score(parts[part])
        log(f"{name}: {scores[name]}{'' if recipe.expect is None else recipe.expect.describe(name)}.")
    return scores


def describe_batches(stats: Any, config: TrainConfig) -> str:
    """The sizes of an epoch in words; if it has a single batch, why that is smaller than configured."""
    whole = f" Each batch has all of the data, which is less than train.batch_tokens ({config.batch_tokens:,}) allows."
    return f"{stats}{whole if stats.batches == 1 else ''}"


def check_labels(source: DataSource, found: Iterable[str], known: Sequence[str]) -> None:
    """Refuse test data none of whose labels the model has: it was made for another model, or is read in a wrong way."""
    labels = sorted(set(found))
    if labels and not set(labels) & set(known):
        keys = [f"data.{key}" for key in ("columns", "keys", "format") if key in type(source).model_fields]
        advice = f" If these are not the labels, set {' or '.join(keys)}." if keys else ""
        raise UserError(
            f"{source.location}: the model has none of its labels ({listed(labels)}); it has {listed(known)}.{advice}"
        )


def report_unknown(name: str, unknown: Sequence[str], log: LogFn, *, none_known: bool = False) -> None:
    """Log which labels of a validation or test set the training data does not have; an error if it has none of them."""
    if none_known:
        raise UserError(
            f"{name}: the training data has none of its labels ({listed(unknown)}); check how data.train and this set "
            "are read."
        )
    if unknown:
        log(f"{name}: the training data has no {listed(unknown)}, so this cannot be predicted and counts as errors.")


def _has_dropout(config: Mapping[str, Any]) -> bool:
    """Whether any part of a model has dropout."""
    return any(
        _has_dropout(value) if isinstance(value, Mapping) else key.endswith("dropout") and value > 0
        for key, value in config.items()
    )
