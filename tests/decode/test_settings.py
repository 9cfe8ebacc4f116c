"""Settings become the search they name, and wrong ones are refused by their key."""

import pytest

from regard import UserError
from regard.config import ConfigError
from regard.decode import (
    Beams,
    DecodeConfig,
    Diverse,
    Forbidden,
    NoPenalty,
    PaperPenalty,
    PowerPenalty,
    Prefix,
    Required,
    Sampled,
    Single,
    Wish,
    make_chooser,
    search,
)
from tests.decode.test_rules import contains
from tests.decode.test_search import END, Table, start

CHOOSERS = {
    "left out": ({}, Wish(), Beams),
    "one beam": ({"beams": 1}, Wish(), Single),
    "groups": ({"beams": 4, "groups": 2}, Wish(), Diverse),
    "drawn": ({"beams": 1, "sample": True}, Wish(), Sampled),
    "required words": ({"beams": 4}, Wish(required=((1,),)), Required),
    "required words with one beam": ({"beams": 1}, Wish(required=((1,),)), Required),
    "a prefix": ({"beams": 4}, Wish(prefix=(1,)), Beams),
}


@pytest.mark.parametrize(("values", "wish", "kind"), CHOOSERS.values(), ids=CHOOSERS.keys())
def test_settings_choose_the_search(values: dict, wish: Wish, kind: type) -> None:
    assert type(make_chooser(DecodeConfig(**values), [5, 5], END, wishes=[wish, Wish()])) is kind


@pytest.mark.parametrize(
    ("values", "same"),
    [
        ({"beams": 3, "penalty": "power", "strength": 1.2}, lambda: Beams([7] * 3, END, 3, penalty=PowerPenalty(1.2))),
        ({"beams": 3, "strength": 0.9}, lambda: Beams([7] * 3, END, 3, penalty=PaperPenalty(0.9))),
        ({"beams": 3, "penalty": "none"}, lambda: Beams([7] * 3, END, 3, penalty=NoPenalty())),
        ({"beams": 4, "groups": 2, "diversity": 3.0}, lambda: Diverse([7] * 3, END, 4, 2, 3.0)),
        (
            {"beams": 1, "sample": True, "temperature": 1.5, "top_k": 4, "top_p": 0.9, "min_p": 0.1, "repetition": 1.3},
            lambda: Sampled(
                [7] * 3,
                END,
                seeds=[0, 1, 2],
                temperature=1.5,
                top_k=4,
                top_p=0.9,
                min_p=0.1,
                repetition=1.3,
            ),
        ),
    ],
    ids=["power", "paper", "none", "diverse", "drawn"],
)
def test_every_number_reaches_the_search(values: dict, same) -> None:
    for seed in range(10):
        table = Table(3, 6, seed)
        found = search(table, table.start(), start(3), make_chooser(DecodeConfig(**values), [7] * 3, END))
        assert found == search(table, table.start(), start(3), same())


def test_rows_are_drawn_with_the_seed_and_their_number_unless_they_have_one_of_their_own() -> None:
    config = DecodeConfig(beams=1, sample=True, seed=40)
    chooser = make_chooser(config, [5] * 3, END, wishes=[Wish(), Wish(seed=7), Wish()])
    assert isinstance(chooser, Sampled)
    assert chooser.seeds.tolist() == [40, 7, 42]


@pytest.mark.parametrize(
    "values",
    [{"beams": 1}, {"beams": 3}, {"beams": 4, "groups": 2}, {"beams": 1, "sample": True}],
    ids=["greedy", "beams", "diverse", "drawn"],
)
def test_wishes_are_kept_by_every_search(values: dict) -> None:
    table = Table(2, 6, 0)
    wishes = [Wish(prefix=(3, 4), forbidden=((2,),)), Wish(forbidden=((1, 5),))]
    found = search(table, table.start(), start(2), make_chooser(DecodeConfig(**values), [7, 7], END, wishes=wishes))
    assert all(one.tokens[:2] == (3, 4) for one in found[0])
    assert not any(contains(one.tokens, each) for row in found for one in row for each in ((2,), (1, 5)))


def test_a_search_without_wishes_has_no_rules() -> None:
    assert list(make_chooser(DecodeConfig(), [5], END).rules) == []


def test_a_wish_becomes_its_rules() -> None:
    chooser = make_chooser(DecodeConfig(), [5], END, wishes=[Wish(prefix=(1,), forbidden=((2,),))])
    assert [type(rule) for rule in chooser.rules] == [Prefix, Forbidden]


def test_required_words_are_refused_or_kept_but_never_dropped_when_tokens_are_drawn() -> None:
    table, wishes = Table(1, 6, 0), [Wish(required=((5,), (4,)))]
    for seed in range(5):
        config = DecodeConfig(beams=1, sample=True, seed=seed)
        try:
            ((one, *_),) = search(table, table.start(), start(1), make_chooser(config, [8], END, wishes=wishes))
        except UserError:
            continue
        assert contains(one.tokens, (5,))
        assert contains(one.tokens, (4,))


def test_groups_are_refused_or_kept_but_never_dropped_where_words_are_required() -> None:
    try:
        chooser = make_chooser(DecodeConfig(beams=4, groups=2), [8], END, wishes=[Wish(required=((5,),))])
    except UserError:
        return
    assert isinstance(chooser, Diverse)


def test_wishes_that_do_not_fit_the_rows_are_refused() -> None:
    with pytest.raises(UserError):
        make_chooser(DecodeConfig(), [5, 5], END, wishes=[Wish(prefix=(1,))])


def test_the_limit_grows_with_the_source() -> None:
    assert DecodeConfig(longest_factor=1.5, longest_extra=10).limit(7) == 20


WRONG = {
    "no beams": ({"beams": 0}, "beams"),
    "negative temperature": ({"temperature": -0.5}, "temperature"),
    "drawing with several beams": ({"sample": True, "beams": 5}, "beams"),
    "drawing with the usual beams": ({"sample": True}, "beams"),
    "groups that do not divide": ({"beams": 4, "groups": 3}, "groups"),
    "no groups": ({"groups": 0}, "groups"),
    "negative diversity": ({"diversity": -1.0}, "diversity"),
    "negative strength": ({"strength": -0.1}, "strength"),
    "negative top_k": ({"top_k": -1}, "top_k"),
    "nothing in the nucleus": ({"top_p": 0.0}, "top_p"),
    "more than everything in the nucleus": ({"top_p": 1.5}, "top_p"),
    "min_p above 1": ({"min_p": 1.1}, "min_p"),
    "repetition of 0": ({"repetition": 0.0}, "repetition"),
    "no room": ({"longest_extra": 0}, "longest_extra"),
    "unknown penalty": ({"penalty": "google"}, "penalty"),
    "not a number": ({"temperature": float("nan")}, "temperature"),
    "more outputs than beams": ({"beams": 2, "outputs": 3}, "outputs"),
    "unknown key": ({"temprature": 0.5}, "temprature"),
}


@pytest.mark.parametrize("values", [{"beams": 4}, {"beams": 4, "groups": 2}, {"beams": 1}], ids=str)
def test_only_as_many_outputs_are_given_as_are_asked_for(values: dict) -> None:
    table = Table(2, 6, 3)
    every, some = (
        search(table, table.start(), start(2), make_chooser(DecodeConfig(**values, outputs=outputs), [4, 4], END))
        for outputs in (None, 1)
    )
    assert some == [found[:1] for found in every]
    assert DecodeConfig(**values).only_best() == DecodeConfig(**values, outputs=1)


@pytest.mark.parametrize(("values", "key"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_setting_is_refused_by_its_key(values: dict, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        DecodeConfig(**values)
    assert caught.value.key == key
    assert str(caught.value).startswith(f"{key}: ")


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        (Wish(prefix=(1, 2, 3), forbidden=((2, 3),)), "part of what it begins with"),
        (Wish(required=((4, 5),), forbidden=((5,),)), "part of a required word"),
        (Wish(prefix=(1, 1, 1), required=((2, 3),)), "have 5 tokens and the output at most 5"),
        (Wish(prefix=(1,) * 6), "begins with 6 given tokens and may have 5"),
    ],
)
def test_wishes_that_no_output_can_fulfil_are_refused(wish: Wish, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_chooser(DecodeConfig(beams=2), [5], END, wishes=[wish])
