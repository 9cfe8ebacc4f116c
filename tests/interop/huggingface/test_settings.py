"""Values of a foreign config.json: of the right kind, or a sentence that names the key."""

import pytest

from regard.errors import UserError
from regard.interop.huggingface.settings import Settings


def settings(**values):
    return Settings(values, "there/config.json")


def test_a_value_that_is_null_counts_as_left_out():
    assert settings(layers=None).whole("layers", 6) == 6


def test_a_number_may_be_written_without_a_point():
    assert settings(rate=1).number("rate") == 1.0


@pytest.mark.parametrize("value", ["6", 6.5, True, [6], 0, -1])
def test_a_whole_number_is_nothing_else(value):
    with pytest.raises(UserError, match=r"there/config\.json: layers is .*, but should be a whole number"):
        settings(layers=value).whole("layers", 6)


@pytest.mark.parametrize("value", ["0.1", True, {}])
def test_a_number_is_nothing_else(value):
    with pytest.raises(UserError, match=r"dropout is .*, but should be a number"):
        settings(dropout=value).number("dropout", 0.1)


@pytest.mark.parametrize("value", [0, 1, "true"])
def test_a_flag_is_true_or_false(value):
    with pytest.raises(UserError, match=r"tied is .*, but should be true or false"):
        settings(tied=value).flag("tied", True)


@pytest.mark.parametrize("value", ["2", 2.0, [1, "2"], False])
def test_token_ids_are_whole_numbers(value):
    with pytest.raises(UserError, match=r"end is .*, but should be a token id"):
        settings(end=value).ids("end")


@pytest.mark.parametrize(("value", "expected"), [(None, []), (3, [3]), ([3, 4], [3, 4]), ([], [])])
def test_token_ids_may_be_none_one_or_several(value, expected):
    assert settings(end=value).ids("end") == expected


@pytest.mark.parametrize("value", [3, ["relu"], "softmax"])
def test_an_unknown_word_is_answered_with_the_known_ones(value):
    with pytest.raises(UserError, match="but should be one of relu, gelu"):
        settings(bend=value).choice("bend", {"relu": 1, "gelu": 2}, "relu")


def test_a_required_value_is_asked_for():
    with pytest.raises(UserError, match="width is missing and should be a whole number"):
        settings().whole("width")


def test_a_table_is_a_table():
    with pytest.raises(UserError, match="rope is 5, but should be a table"):
        settings(rope=5).table("rope")
