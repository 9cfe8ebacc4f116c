"""Configs are validated strictly, and each error names the key and the problem."""

import json
from typing import Annotated, Any, Literal, Self

import pytest
from hypothesis import given
from hypothesis import strategies as some
from pydantic import Field, ValidationError, field_validator, model_validator

from regard import UserError
from regard.config import Config, ConfigError


class Wheel(Config):
    spokes: int = Field(ge=1)
    radius: float = Field(default=0.5, gt=0)

    @model_validator(mode="after")
    def _strong_enough(self) -> Self:
        if self.spokes < 10 * self.radius:
            raise ConfigError("spokes", f"{self.spokes} are too few for a radius of {self.radius}.")
        return self


class Bell(Config):
    kind: Literal["bell"] = "bell"
    tone: Literal["high", "low"] = "high"


class Horn(Config):
    kind: Literal["horn"] = "horn"
    loudness: int = Field(ge=1)


class Frame(Config):
    front: Wheel
    rear: Wheel | None = None
    signal: Annotated[Bell | Horn, Field(discriminator="kind")] = Bell()


class Bicycle(Config):
    name: str
    frame: Frame = Frame(front=Wheel(spokes=32))
    gears: tuple[Annotated[int, Field(ge=1)], ...] = Field(default=(1, 2), strict=False)
    lights: bool = True
    price: float = 100.0

    @field_validator("name")
    @classmethod
    def _has_letters(cls, name: str) -> str:
        if not name.strip():
            raise UserError("a bicycle needs a name.")
        return name

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.frame.rear is not None and self.frame.rear.radius != self.frame.front.radius:
            raise ConfigError("frame.rear.radius", "both wheels are of one size; give the front's.")
        return self


FULL: dict[str, Any] = {
    "name": "Swift",
    "frame": {
        "front": {"spokes": 36, "radius": 0.3},
        "rear": {"spokes": 28, "radius": 0.3},
        "signal": {"kind": "horn", "loudness": 3},
    },
    "gears": [1, 3, 5],
    "lights": False,
    "price": 12.5,
}


def changed(path: str, value: Any) -> dict[str, Any]:
    """FULL with another value for one dotted key."""
    copy = json.loads(json.dumps(FULL))
    table = copy
    *parents, last = path.split(".")
    for key in parents:
        table = table[key]
    table[last] = value
    return copy


def without(path: str) -> dict[str, Any]:
    copy = changed(path, None)
    table = copy
    *parents, last = path.split(".")
    for key in parents:
        table = table[key]
    del table[last]
    return copy


def refusal(values: object, where: str = "") -> str:
    with pytest.raises(UserError) as caught:
        Bicycle.read(values, where)
    message = str(caught.value)
    assert "\n" not in message
    assert message.endswith((".", "?"))
    return message


def test_values_at_any_depth():
    bicycle = Bicycle.read(FULL)
    assert bicycle.frame.rear == Wheel(spokes=28, radius=0.3)
    assert bicycle.frame.signal == Horn(loudness=3)
    assert bicycle.gears == (1, 3, 5)
    assert bicycle.lights is False


def test_defaults():
    assert Bicycle.read({"name": "Plain"}) == Bicycle(name="Plain", frame=Frame(front=Wheel(spokes=32, radius=0.5)))


# Unknown and missing keys


@pytest.mark.parametrize(
    ("path", "nearest"),
    [
        ("nmae", "name"),
        ("frame.fornt", "front"),
        ("frame.front.spoks", "spokes"),
        ("frame.rear.radios", "radius"),
        ("frame.signal.loudnes", "loudness"),
    ],
)
def test_unknown_key_suggests_the_nearest_at_any_depth(path, nearest):
    assert refusal(changed(path, 1)) == f"{path}: unknown key; did you mean {nearest!r}?"


def test_unknown_key_lists_all_keys():
    assert refusal(changed("frame.xyz", 1)) == "frame.xyz: unknown key; the known keys are front, rear, signal."


@pytest.mark.parametrize(
    ("path", "values", "expected"),
    [
        ("frame.front", {"spoks": 30}, "frame.front.spoks: unknown key; did you mean 'spokes'?"),
        ("frame.signal", {"kind": "horn", "loud": 3}, "frame.signal.loud: unknown key; did you mean 'loudness'?"),
    ],
)
def test_misspelled_required_key_is_named_as_written(path, values, expected):
    """Such a key is both unknown and missing; the error reports the unknown one."""
    assert refusal(changed(path, values)) == expected


@pytest.mark.parametrize("key", ["self", "cls", "values", "model_config", "__init__", "a.b"])
def test_python_attribute_names_are_unknown_keys(key):
    assert refusal({**FULL, key: 1}).startswith(f"{key}: unknown key; ")


def test_non_string_key_is_unknown():
    assert refusal({**FULL, 3: 1}).startswith("3: unknown key; ")


@pytest.mark.parametrize("path", ["name", "frame.front", "frame.front.spokes", "frame.signal.loudness"])
def test_missing_key_is_named_at_any_depth(path):
    assert refusal(without(path)) == f"{path}: this key is required."


def test_missing_kind_is_named():
    assert refusal(without("frame.signal.kind")).startswith("frame.signal.kind: this key is required; ")


@pytest.mark.parametrize("kind", ["hron", "", 3, None])
def test_unknown_kind_lists_the_kinds(kind):
    message = refusal(changed("frame.signal.kind", kind))
    assert message.startswith("frame.signal.kind: ")
    assert "'bell', 'horn'" in message


@pytest.mark.parametrize("kind", [[], {}])
def test_non_string_kind_is_refused(kind):
    assert refusal(changed("frame.signal.kind", kind)).startswith("frame.signal")


# Wrong values


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("frame.front.spokes", 0, "found 0; expected greater than or equal to 1."),
        ("frame.rear.radius", -1, "found -1; expected greater than 0."),
        ("frame.signal.loudness", 0, "found 0; expected greater than or equal to 1."),
        ("frame.front.radius", float("nan"), "found nan; expected a finite number."),
        ("price", float("inf"), "found inf; expected a finite number."),
        ("frame.signal", {"kind": "bell", "tone": "loud"}, "found 'loud'; expected 'high' or 'low'."),
    ],
)
def test_value_out_of_range_names_the_range(path, value, expected):
    key = f"{path}.tone" if isinstance(value, dict) else path
    assert refusal(changed(path, value)) == f"{key}: {expected}"


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("frame.front.spokes", "36", "found '36'; expected a valid integer"),
        ("frame.front.spokes", True, "found True; expected a valid integer"),
        ("frame.front.spokes", 36.5, "found 36.5; expected a valid integer"),
        ("frame.front.spokes", None, "found None; expected a valid integer"),
        ("frame.front.spokes", [36], "found [36]; expected a valid integer"),
        ("price", "12.5", "found '12.5'; expected a valid number"),
        ("price", False, "found False; expected a valid number"),
        ("lights", "yes", "found 'yes'; expected a valid boolean"),
        ("lights", 1, "found 1; expected a valid boolean"),
        ("name", 3, "found 3; expected a valid string"),
        ("frame", 3, "found 3; expected a valid dictionary"),
        ("frame", [], "found []; expected a valid dictionary"),
        ("frame.rear", "large", "found 'large'; expected a valid dictionary"),
        ("frame.signal", "ring", "found 'ring'; expected a valid dictionary"),
        ("gears", 3, "found 3; expected a valid tuple"),
    ],
    ids=str,
)
def test_wrong_type_is_refused_and_never_converted(path, value, expected):
    assert refusal(changed(path, value)).startswith(f"{path}: {expected}")


def test_integer_is_accepted_for_a_float():
    assert Bicycle.read(changed("price", 12)).price == 12.0


def test_invalid_list_item_is_named_with_its_index():
    assert refusal(changed("gears", [1, 0, 3])) == "gears.1: found 0; expected greater than or equal to 1."


def test_field_validator_error_has_the_key():
    assert refusal(changed("name", " ")) == "name: a bicycle needs a name."


def test_model_validator_error_has_the_full_key():
    assert refusal(changed("frame.front.radius", 9.0)) == "frame.front.spokes: 36 are too few for a radius of 9.0."


def test_outer_validator_error_has_the_key_it_names():
    message = refusal(changed("frame.rear.radius", 0.4))
    assert message == "frame.rear.radius: both wheels are of one size; give the front's."


def test_error_has_key_and_problem():
    with pytest.raises(ConfigError) as caught:
        Wheel(spokes=0)
    assert caught.value.key == "spokes"
    assert caught.value.problem == "found 0; expected greater than or equal to 1."


@pytest.mark.parametrize("error", [UserError, ValueError])
def test_error_is_a_user_error_and_a_value_error(error):
    with pytest.raises(error, match="spokes"):
        Wheel(spokes=0)


# The file in the error


@pytest.mark.parametrize("wrong", [changed("price", "x"), changed("frame.xyz", 1), without("name")])
def test_error_begins_with_the_file(wrong):
    assert refusal(wrong, "bicycles/swift.toml") == f"bicycles/swift.toml: {refusal(wrong)}"


@pytest.mark.parametrize(
    ("values", "kind"), [(None, "nothing"), ([], "a value of type list"), ("text", "a value of type str")]
)
def test_non_table_is_refused(values, kind):
    assert refusal(values, "file.json") == f"file.json: expected a table of settings, found {kind}."


# Immutability and round trips


def test_config_is_frozen():
    wheel = Wheel(spokes=30)
    with pytest.raises(ValidationError, match="frozen"):
        wheel.spokes = 31


def test_equal_configs_hash_alike():
    assert len({Wheel(spokes=30), Wheel(spokes=30), Wheel(spokes=31)}) == 2


def test_defaults_are_validated():
    class Unsound(Config):
        count: int = Field(default=0, ge=1)

    with pytest.raises(UserError, match=r"^count: found 0; expected greater than or equal to 1\.$"):
        Unsound()


radii = some.floats(0.01, 1.0)
wheels = some.builds(Wheel, spokes=some.integers(10, 99), radius=radii)


@some.composite
def bicycles(draw: some.DrawFn) -> Bicycle:
    front = draw(wheels)
    rear = draw(some.none() | some.builds(Wheel, spokes=some.integers(10, 99), radius=some.just(front.radius)))
    horns = some.builds(Horn, loudness=some.integers(1, 10**12))
    signal = draw(some.builds(Bell, tone=some.sampled_from(["high", "low"])) | horns)
    return Bicycle(
        name=draw(some.text(min_size=1).filter(str.strip)),
        frame=Frame(front=front, rear=rear, signal=signal),
        gears=tuple(draw(some.lists(some.integers(1, 30)))),
        lights=draw(some.booleans()),
        price=draw(some.floats(allow_nan=False, allow_infinity=False)),
    )


@given(bicycle=bicycles())
def test_config_round_trips_through_json(bicycle):
    assert Bicycle.read(json.loads(json.dumps(bicycle.plain()))) == bicycle


@given(bicycle=bicycles())
def test_plain_data_has_every_key(bicycle):
    """So a file keeps its meaning after a default changes."""
    plain = bicycle.plain()
    assert plain.keys() == Bicycle.model_fields.keys()
    assert plain["frame"].keys() == Frame.model_fields.keys()
    assert plain["frame"]["front"].keys() == Wheel.model_fields.keys()
