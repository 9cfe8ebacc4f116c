"""Absurd sizes and numbers are refused by name, before memory is touched and before anything is written."""

import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin
from unittest import mock

import annotated_types
import pytest
from pydantic.fields import FieldInfo

import regard
from regard import UserError
from regard.config import Config, ConfigError
from regard.decode import DecodeConfig
from regard.decode.batch import Request, search_batch
from regard.model import LanguageModelConfig
from tests.cli.refusal import assert_refused
from tests.task.small import command, write_recipe_file


def config_classes() -> list[type[Config]]:
    """Every config class of the package."""
    for module in pkgutil.walk_packages(regard.__path__, "regard."):
        if not module.name.startswith("regard.kernels") and not module.name.endswith("__main__"):
            importlib.import_module(module.name)

    def below(base: type[Config]) -> Iterator[type[Config]]:
        for kind in base.__subclasses__():
            yield kind
            yield from below(kind)

    return [kind for kind in dict.fromkeys(below(Config)) if kind.__module__.startswith("regard.")]


def unbounded_numbers(annotation: Any, bounds: list[Any]) -> Iterator[Any]:
    """The numeric types in an annotation that lack a lower or an upper bound."""
    if get_origin(annotation) is Annotated:
        inner, *more = get_args(annotation)
        for each in more:
            bounds = [*bounds, *(each.metadata if isinstance(each, FieldInfo) else [each])]
        yield from unbounded_numbers(inner, bounds)
    elif get_origin(annotation) in (Union, UnionType):
        for member in get_args(annotation):
            yield from unbounded_numbers(member, bounds)
    elif get_origin(annotation) in (tuple, list, dict):
        for member in get_args(annotation):
            yield from unbounded_numbers(member, [])
    elif annotation in (int, float):
        lower = any(isinstance(each, annotated_types.Ge | annotated_types.Gt) for each in bounds)
        upper = any(isinstance(each, annotated_types.Le | annotated_types.Lt) for each in bounds)
        if not (lower and upper):
            yield annotation
    else:
        known = annotation in (str, bool, Any, NoneType, Ellipsis) or get_origin(annotation) is Literal
        assert known or isinstance(annotation, type), annotation


def test_every_number_in_every_config_has_a_lower_and_an_upper_bound() -> None:
    missing = [
        f"{kind.__name__}.{name}"
        for kind in config_classes()
        for name, field in kind.model_fields.items()
        if list(unbounded_numbers(field.annotation, field.metadata))
    ]
    assert not missing


def test_unbounded_numbers_are_found_inside_other_types() -> None:
    bounded = Annotated[int, FieldInfo(annotation=int, ge=1, le=2)]  # type: ignore[call-arg]
    for annotation in (int, int | None, tuple[float, ...], Annotated[float, annotated_types.Gt(0)], bounded | float):
        assert list(unbounded_numbers(annotation, []))


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("width", {"width": 10**9}),
        ("decoder.layers", {"decoder": {"layers": 10**5}}),
        ("decoder.norm.eps", {"decoder": {"norm": {"eps": 1e300}}}),
        ("decoder.attention.pattern", {"decoder": {"attention": {"pattern": f"sliding({10**30})"}}}),
        ("decoder.attention.pattern", {"decoder": {"attention": {"pattern": " | ".join(["full"] * 1000)}}}),
        ("position.theta", {"position": {"kind": "rotary", "theta": 1e300}}),
        ("vocab_size", {"vocab_size": 10**12}),
        ("vocab_size", {"vocab_size": 10**5000}),
    ],
)
def test_absurd_model_sizes_are_refused_by_their_key(key: str, values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as refused:
        LanguageModelConfig(**({"vocab_size": 100} | values))
    assert refused.value.key == key
    assert len(str(refused.value)) < 1000


@pytest.mark.parametrize("key", ["beam_size", "nbest", "beam_groups", "top_k", "temperature", "seed"])
def test_absurd_decoding_settings_are_refused_by_their_key(key: str) -> None:
    with pytest.raises(ConfigError) as refused:
        DecodeConfig(**{key: 10**20})
    assert refused.value.key == key


def test_a_million_alternatives_are_refused() -> None:
    with pytest.raises(UserError, match="alternatives: found 1000000"):
        Request((1, 2), 5, DecodeConfig(), alternatives=10**6)


@pytest.mark.parametrize("option", ["--beam-size", "--nbest", "--alternatives"])
@pytest.mark.parametrize("name", ["translate", "generate"])
def test_absurd_options_are_refused_before_a_model_is_loaded(name: str, option: str) -> None:
    done = command(name, "nowhere", "text", "--json", option, "1000000")
    assert done.code == 2
    assert option in done.err
    assert "nowhere" not in done.err


@pytest.mark.parametrize(
    "changes",
    [
        ["model.width=1000000"],
        ["model.encoder.layers=100", "model.width=16384"],
        ["tokenizer.vocab_size=10000000", "model.width=4096"],
    ],
)
def test_model_that_cannot_fit_is_refused_before_anything_is_written(tmp_path: Path, changes: list[str]) -> None:
    recipe = write_recipe_file(tmp_path / "r.toml", {"train": [{"path": "pairs.tsv"}]}, "tokenizer.kind=bpe", *changes)
    before = list(tmp_path.iterdir())
    with mock.patch("torch.nn.Module.to_empty", side_effect=AssertionError("allocated")):
        done = command("train", recipe, "--out", tmp_path / "run", "--device", "cpu")
    assert_refused(done, "parameters", "model.width")
    assert list(tmp_path.iterdir()) == before


def test_kv_cache_that_does_not_fit_is_refused() -> None:
    stack = {"layers": 1, "attention": {"heads": 2}, "feed_forward": {"hidden": 8}}
    config = LanguageModelConfig(vocab_size=9, width=8, decoder=stack, position={"kind": "rotary"})
    with pytest.raises(UserError, match="KV cache of 1 × 1,000,000,000,000 tokens"):
        search_batch(config.build(), [Request((1, 2), 10**12, DecodeConfig(beam_size=1))], eos=2)
