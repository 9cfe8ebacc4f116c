"""Position schemes as settings: every kind builds, and wrong settings name their key."""

from typing import Any

import pytest
import torch

from regard.attention import Binary, Concatenated, Index, Learned, Normalised, Position, Rotary, Sinusoidal
from regard.attention.position import AnyPosition, PositionConfig
from regard.config import Config, ConfigError
from regard.errors import UserError


class Holder(Config):
    """A table of settings with a position in it, as a model's is."""

    position: AnyPosition


def read(**values: Any) -> PositionConfig:
    return Holder.read({"position": values}).position


CODES = [
    ({"kind": "sinusoidal"}, Sinusoidal),
    ({"kind": "learned", "limit": 9}, Learned),
    ({"kind": "index"}, Index),
    ({"kind": "normalised"}, Normalised),
    ({"kind": "binary"}, Binary),
]
ids = [str(values["kind"]) for values, _ in CODES]


@pytest.mark.parametrize(("values", "kind"), CODES, ids=ids)
def test_an_added_code_is_as_wide_as_the_model(values: dict[str, Any], kind: type[Position]) -> None:
    config = read(**values)
    code = config.build(6)
    assert isinstance(code, kind)
    assert config.token_width(6) == 6
    assert code.join(torch.zeros(1, 4, 6), torch.arange(4)).shape == (1, 4, 6)


@pytest.mark.parametrize(("values", "kind"), CODES, ids=ids)
def test_a_concatenated_code_and_the_token_share_the_models_width(values: dict[str, Any], kind: type[Position]) -> None:
    config = read(**values, join="concatenate", features=2)
    code = config.build(6)
    assert isinstance(code, Concatenated)
    assert isinstance(code.encoding, kind)
    assert config.token_width(6) == 4
    assert code.join(torch.zeros(1, 4, 4), torch.arange(4)).shape == (1, 4, 6)


@pytest.mark.parametrize("kind", ["none", "rotary"])
def test_a_scheme_that_puts_nothing_into_embeddings_leaves_them_alone(kind: str) -> None:
    x = torch.rand(1, 4, 6)
    assert read(kind=kind).build(6).join(x, torch.arange(4)) is x
    assert read(kind=kind).token_width(6) == 6


def test_rotary_turns_queries_and_keys_by_its_settings() -> None:
    rotary = read(kind="rotary", base=500.0, scaling={"kind": "linear", "factor": 4.0}).rotary(8)
    assert isinstance(rotary, Rotary)
    assert (rotary.width, rotary.base, rotary.scaling.factor) == (8, 500.0, 4.0)


@pytest.mark.parametrize("values", [values for values, _ in CODES] + [{"kind": "none"}], ids=[*ids, "none"])
def test_other_schemes_turn_nothing(values: dict[str, Any]) -> None:
    assert read(**values).rotary(8) is None


@pytest.mark.parametrize(("kind", "needs"), [("normalised", True), ("sinusoidal", False), ("none", False)])
def test_only_a_normalised_index_needs_the_length_of_the_sentence(kind: str, needs: bool) -> None:
    assert read(kind=kind).needs_length is needs


@pytest.mark.parametrize(("base", "layout"), [(10_000.0, "interleaved"), (50.0, "halves")])
def test_sinusoidal_settings_reach_the_code(base: float, layout: str) -> None:
    code = read(kind="sinusoidal", base=base, layout=layout).build(6)
    assert torch.equal(code.encode(torch.arange(5)), Sinusoidal(6, base, layout).encode(torch.arange(5)))


@pytest.mark.parametrize("features", [None, 6, 7])
def test_a_concatenated_code_that_leaves_no_room_is_refused_naming_the_key(features: int | None) -> None:
    config = read(kind="binary", join="concatenate", features=features)
    with pytest.raises(ConfigError, match=f"features: found {features}; .*1 to 5 of the model's 6 features") as caught:
        config.token_width(6)
    assert caught.value.key == "features"


def test_features_of_an_added_code_are_refused_naming_the_key() -> None:
    with pytest.raises(ConfigError, match="features: an added code is as wide as the model") as caught:
        read(kind="binary", features=2).token_width(6)
    assert caught.value.key == "features"


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"kind": "sinusoid"}, "position.kind"),
        ({}, "position.kind"),
        ({"kind": "learned"}, "position.limit"),
        ({"kind": "learned", "limit": 0}, "position.limit"),
        ({"kind": "sinusoidal", "base": 1.0}, "position.base"),
        ({"kind": "sinusoidal", "layout": "half"}, "position.layout"),
        ({"kind": "binary", "features": 0, "join": "concatenate"}, "position.features"),
        ({"kind": "none", "limit": 9}, "position.limit"),
        ({"kind": "rotary", "base": 0.5}, "position.base"),
        ({"kind": "rotary", "scaling": {"kind": "ntk"}}, "position.scaling.kind"),
        ({"kind": "rotary", "scaling": {"kind": "linear", "factor": 0.0}}, "position.scaling.factor"),
        ({"kind": "rotary", "scaling": {"kind": "linear"}}, "position.scaling.factor"),
        (
            {"kind": "rotary", "scaling": {"kind": "yarn", "factor": 2.0, "trained": 8, "fsat": 9}},
            "position.scaling.fsat",
        ),
    ],
    ids=str,
)
def test_a_wrong_setting_is_refused_naming_its_key(values: dict[str, Any], key: str) -> None:
    with pytest.raises(UserError, match=f"^{key}: "):
        read(**values)


@pytest.mark.parametrize(("values", "_"), CODES, ids=ids)
def test_settings_are_read_back_from_plain_data(values: dict[str, Any], _: type[Position]) -> None:
    config = read(**values)
    assert read(**config.plain()) == config
