"""Configs of position encodings: every kind can be built, and invalid settings are refused by key."""

from typing import Any

import pytest
import torch

from regard.attention import Binary, Concatenated, Index, Learned, Normalized, Position, Rotary, Sinusoidal
from regard.attention.positions.config import AnyPosition, PositionConfig
from regard.config import Config, ConfigError
from regard.errors import UserError


class PositionHolder(Config):
    """A config with a position, like a model's."""

    position: AnyPosition


def read(**values: Any) -> PositionConfig:
    return PositionHolder.read({"position": values}).position


ENCODINGS = [
    ({"kind": "sinusoidal"}, Sinusoidal),
    ({"kind": "learned", "max_length": 9}, Learned),
    ({"kind": "index"}, Index),
    ({"kind": "normalized"}, Normalized),
    ({"kind": "binary"}, Binary),
]
ids = [str(values["kind"]) for values, _ in ENCODINGS]


@pytest.mark.parametrize(("values", "kind"), ENCODINGS, ids=ids)
def test_added_encoding_is_as_wide_as_the_model(values: dict[str, Any], kind: type[Position]) -> None:
    config = read(**values)
    encoding = config.build(6)
    assert isinstance(encoding, kind)
    assert config.token_width(6) == 6
    assert encoding.combine(torch.zeros(1, 4, 6), torch.arange(4)).shape == (1, 4, 6)


@pytest.mark.parametrize(("values", "kind"), ENCODINGS, ids=ids)
def test_concatenated_encoding_and_token_share_the_width(values: dict[str, Any], kind: type[Position]) -> None:
    config = read(**values, combine="concatenate", features=2)
    encoding = config.build(6)
    assert isinstance(encoding, Concatenated)
    assert isinstance(encoding.encoding, kind)
    assert config.token_width(6) == 4
    assert encoding.combine(torch.zeros(1, 4, 4), torch.arange(4)).shape == (1, 4, 6)


@pytest.mark.parametrize("kind", ["none", "rotary"])
def test_schemes_without_absolute_encoding_leave_embeddings_unchanged(kind: str) -> None:
    x = torch.rand(1, 4, 6)
    assert read(kind=kind).build(6).combine(x, torch.arange(4)) is x
    assert read(kind=kind).token_width(6) == 6


def test_rotary_config_builds_its_rotation() -> None:
    rotary = read(kind="rotary", theta=500.0, scaling={"kind": "linear", "factor": 4.0}).rotary(8)
    assert isinstance(rotary, Rotary)
    assert (rotary.width, rotary.theta, rotary.scaling.factor) == (8, 500.0, 4.0)


@pytest.mark.parametrize("values", [values for values, _ in ENCODINGS] + [{"kind": "none"}], ids=[*ids, "none"])
def test_other_schemes_have_no_rotation(values: dict[str, Any]) -> None:
    assert read(**values).rotary(8) is None


@pytest.mark.parametrize(("kind", "needs"), [("normalized", True), ("sinusoidal", False), ("none", False)])
def test_only_a_normalized_index_needs_the_length(kind: str, needs: bool) -> None:
    assert read(kind=kind).needs_length is needs


@pytest.mark.parametrize(("theta", "layout"), [(10_000.0, "interleaved"), (50.0, "halves")])
def test_sinusoidal_config_reaches_the_encoding(theta: float, layout: str) -> None:
    encoding = read(kind="sinusoidal", theta=theta, layout=layout).build(6)
    assert torch.equal(encoding.encode(torch.arange(5)), Sinusoidal(6, theta, layout).encode(torch.arange(5)))


@pytest.mark.parametrize("features", [None, 6, 7])
def test_too_wide_concatenated_encoding_is_refused(features: int | None) -> None:
    config = read(kind="binary", combine="concatenate", features=features)
    with pytest.raises(ConfigError, match=f"features: found {features}; .*1 to 5 of the model's 6 features") as caught:
        config.token_width(6)
    assert caught.value.key == "features"


def test_features_of_an_added_encoding_are_refused() -> None:
    with pytest.raises(ConfigError, match="features: an added encoding is as wide as the model") as caught:
        read(kind="binary", features=2).token_width(6)
    assert caught.value.key == "features"


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"kind": "sinusoid"}, "position.kind"),
        ({}, "position.kind"),
        ({"kind": "learned"}, "position.max_length"),
        ({"kind": "learned", "max_length": 0}, "position.max_length"),
        ({"kind": "sinusoidal", "theta": 1.0}, "position.theta"),
        ({"kind": "sinusoidal", "layout": "half"}, "position.layout"),
        ({"kind": "binary", "features": 0, "combine": "concatenate"}, "position.features"),
        ({"kind": "none", "limit": 9}, "position.limit"),
        ({"kind": "rotary", "theta": 0.5}, "position.theta"),
        ({"kind": "rotary", "scaling": {"kind": "ntk"}}, "position.scaling.kind"),
        ({"kind": "rotary", "scaling": {"kind": "linear", "factor": 0.0}}, "position.scaling.factor"),
        ({"kind": "rotary", "scaling": {"kind": "linear"}}, "position.scaling.factor"),
        (
            {"kind": "rotary", "scaling": {"kind": "yarn", "factor": 2.0, "original_max_length": 8, "fsat": 9}},
            "position.scaling.fsat",
        ),
    ],
    ids=str,
)
def test_invalid_setting_is_refused_by_key(values: dict[str, Any], key: str) -> None:
    with pytest.raises(UserError, match=f"^{key}: "):
        read(**values)


@pytest.mark.parametrize(("values", "_"), ENCODINGS, ids=ids)
def test_config_round_trips_through_plain_data(values: dict[str, Any], _: type[Position]) -> None:
    config = read(**values)
    assert read(**config.plain()) == config
