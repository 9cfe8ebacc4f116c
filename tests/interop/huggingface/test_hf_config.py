"""Typed values of a Hugging Face config.json, and errors that name the key."""

import pytest

from regard.errors import UserError
from regard.interop.huggingface.hf_config import HFConfig


def hf_config(**values):
    return HFConfig(values, "there/config.json")


def test_null_is_a_missing_value():
    assert hf_config(layers=None).integer("layers", 6) == 6


def test_number_may_be_an_integer():
    assert hf_config(rate=1).number("rate") == 1.0


@pytest.mark.parametrize("value", ["6", 6.5, True, [6], 0, -1])
def test_invalid_integer_is_refused(value):
    with pytest.raises(UserError, match=r"there/config\.json: layers is .*, but should be an integer"):
        hf_config(layers=value).integer("layers", 6)


@pytest.mark.parametrize("value", ["0.1", True, {}])
def test_invalid_number_is_refused(value):
    with pytest.raises(UserError, match=r"dropout is .*, but should be a number"):
        hf_config(dropout=value).number("dropout", 0.1)


@pytest.mark.parametrize("value", [0, 1, "true"])
def test_invalid_flag_is_refused(value):
    with pytest.raises(UserError, match=r"tied is .*, but should be true or false"):
        hf_config(tied=value).flag("tied", True)


@pytest.mark.parametrize("value", ["2", 2.0, [1, "2"], False])
def test_invalid_token_id_is_refused(value):
    with pytest.raises(UserError, match=r"end is .*, but should be a token id"):
        hf_config(end=value).ids("end")


@pytest.mark.parametrize(("value", "expected"), [(None, []), (3, [3]), ([3, 4], [3, 4]), ([], [])])
def test_token_ids_may_be_missing_one_or_several(value, expected):
    assert hf_config(end=value).ids("end") == expected


@pytest.mark.parametrize("value", [3, ["relu"], "softmax"])
def test_unknown_choice_is_refused_with_the_known_ones(value):
    with pytest.raises(UserError, match="but should be one of relu, gelu"):
        hf_config(activation=value).choice("activation", {"relu": 1, "gelu": 2}, "relu")


def test_missing_required_value_is_refused():
    with pytest.raises(UserError, match="width is missing and should be an integer"):
        hf_config().integer("width")


def test_invalid_object_is_refused():
    with pytest.raises(UserError, match="rope is 5, but should be an object"):
        hf_config(rope=5).table("rope")
