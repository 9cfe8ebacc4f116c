"""A decoding config builds the strategy it describes; errors name the wrong key."""

import pytest

from regard import UserError
from regard.config import ConfigError
from regard.decode import (
    BeamSearch,
    ConstrainedBeamSearch,
    Constraints,
    DecodeConfig,
    DiverseBeamSearch,
    Diversity,
    ForbiddenProcessor,
    Greedy,
    LengthPenalty,
    PrefixProcessor,
    Sampler,
    SamplingParams,
    make_strategy,
    search,
)
from tests.decode.toy_models import EOS, TableModel, contains, start_tokens

STRATEGIES = {
    "defaults": ({}, Constraints(), BeamSearch),
    "beam size 1": ({"beam_size": 1}, Constraints(), Greedy),
    "groups": ({"beam_size": 4, "beam_groups": 2}, Constraints(), DiverseBeamSearch),
    "sampling": ({"beam_size": 1, "sample": True}, Constraints(), Sampler),
    "required words": ({"beam_size": 4}, Constraints(required=((1,),)), ConstrainedBeamSearch),
    "required words, beam size 1": ({"beam_size": 1}, Constraints(required=((1,),)), ConstrainedBeamSearch),
    "prefix": ({"beam_size": 4}, Constraints(prefix=(1,)), BeamSearch),
}


@pytest.mark.parametrize(("values", "constraints", "kind"), STRATEGIES.values(), ids=STRATEGIES.keys())
def test_settings_select_the_strategy(values: dict, constraints: Constraints, kind: type) -> None:
    assert type(make_strategy(DecodeConfig(**values), [5, 5], EOS, constraints=[constraints, Constraints()])) is kind


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (
            {"beam_size": 3, "length_penalty": {"kind": "power", "alpha": 1.2}},
            lambda: BeamSearch([7] * 3, EOS, 3, length_penalty=LengthPenalty(kind="power", alpha=1.2)),
        ),
        (
            {"beam_size": 3, "length_penalty": {"alpha": 0.9}},
            lambda: BeamSearch([7] * 3, EOS, 3, length_penalty=LengthPenalty(alpha=0.9)),
        ),
        (
            {"beam_size": 3, "length_penalty": {"kind": "none"}},
            lambda: BeamSearch([7] * 3, EOS, 3, length_penalty=LengthPenalty(kind="none")),
        ),
        (
            {"beam_size": 4, "beam_groups": 2, "diversity_penalty": 3.0},
            lambda: DiverseBeamSearch([7] * 3, EOS, 4, Diversity(2, 3.0)),
        ),
        (
            {
                "beam_size": 1,
                "sample": True,
                "temperature": 1.5,
                "top_k": 4,
                "top_p": 0.9,
                "min_p": 0.1,
                "repetition_penalty": 1.3,
            },
            lambda: Sampler(
                [7] * 3,
                EOS,
                SamplingParams(temperature=1.5, top_k=4, top_p=0.9, min_p=0.1, repetition_penalty=1.3),
                seeds=[0, 1, 2],
            ),
        ),
    ],
    ids=["power", "gnmt", "none", "diverse", "sampling"],
)
def test_every_setting_reaches_the_strategy(values: dict, expected) -> None:
    for seed in range(10):
        model = TableModel(3, 6, seed)
        config = DecodeConfig(min_length=0, **values)
        found = search(model, model.start(), start_tokens(3), make_strategy(config, [7] * 3, EOS))
        assert found == search(model, model.start(), start_tokens(3), expected())


def test_seed_of_a_row_is_its_own_or_the_configs_plus_its_index() -> None:
    config = DecodeConfig(beam_size=1, sample=True, seed=40)
    constraints = [Constraints(), Constraints(seed=7), Constraints()]
    strategy = make_strategy(config, [5] * 3, EOS, constraints=constraints)
    assert isinstance(strategy, Sampler)
    assert strategy.seeds.tolist() == [40, 7, 42]


@pytest.mark.parametrize(
    "values",
    [{"beam_size": 1}, {"beam_size": 3}, {"beam_size": 4, "beam_groups": 2}, {"beam_size": 1, "sample": True}],
    ids=["greedy", "beam", "diverse", "sampling"],
)
def test_every_strategy_satisfies_constraints(values: dict) -> None:
    model = TableModel(2, 6, 0)
    constraints = [Constraints(prefix=(3, 4), forbidden=((2,),)), Constraints(forbidden=((1, 5),))]
    strategy = make_strategy(DecodeConfig(**values), [7, 7], EOS, constraints=constraints)
    found = search(model, model.start(), start_tokens(2), strategy)
    assert all(one.tokens[:2] == (3, 4) for one in found[0])
    assert not any(contains(one.tokens, each) for row in found for one in row for each in ((2,), (1, 5)))


def test_constraints_become_logits_processors() -> None:
    assert list(make_strategy(DecodeConfig(), [5], EOS).processors) == []
    strategy = make_strategy(DecodeConfig(), [5], EOS, constraints=[Constraints(prefix=(1,), forbidden=((2,),))])
    assert [type(processor) for processor in strategy.processors] == [PrefixProcessor, ForbiddenProcessor]


@pytest.mark.parametrize("values", [{"beam_size": 1, "sample": True}, {"beam_size": 4, "beam_groups": 2}], ids=str)
def test_required_words_need_plain_beam_search(values: dict) -> None:
    with pytest.raises(UserError, match="Required words"):
        make_strategy(DecodeConfig(**values), [8], EOS, constraints=[Constraints(required=((5,),))])


def test_wrong_number_of_constraints_is_refused() -> None:
    with pytest.raises(UserError, match="constraints for 1 rows"):
        make_strategy(DecodeConfig(), [5, 5], EOS, constraints=[Constraints(prefix=(1,))])


def test_max_length_grows_with_the_source() -> None:
    assert DecodeConfig(max_length_ratio=1.5, max_length_offset=10).max_length(7) == 20


@pytest.mark.parametrize("values", [{"beam_size": 4}, {"beam_size": 4, "beam_groups": 2}, {"beam_size": 1}], ids=str)
def test_nbest_limits_the_number_of_hypotheses(values: dict) -> None:
    model = TableModel(2, 6, 3)
    every, best = (
        search(model, model.start(), start_tokens(2), make_strategy(DecodeConfig(**values, nbest=nbest), [4, 4], EOS))
        for nbest in (None, 1)
    )
    assert best == [hypotheses[:1] for hypotheses in every]
    assert DecodeConfig(**values).only_best() == DecodeConfig(**values, nbest=1)


WRONG = {
    "no beams": ({"beam_size": 0}, "beam_size"),
    "negative temperature": ({"temperature": -0.5}, "temperature"),
    "sampling with beams": ({"sample": True, "beam_size": 5}, "beam_size"),
    "sampling with the default beam size": ({"sample": True}, "beam_size"),
    "groups that do not divide the beam size": ({"beam_size": 4, "beam_groups": 3}, "beam_groups"),
    "no groups": ({"beam_groups": 0}, "beam_groups"),
    "negative diversity penalty": ({"diversity_penalty": -1.0}, "diversity_penalty"),
    "negative alpha": ({"length_penalty": {"alpha": -0.1}}, "length_penalty.alpha"),
    "negative top_k": ({"top_k": -1}, "top_k"),
    "top_p of 0": ({"top_p": 0.0}, "top_p"),
    "top_p above 1": ({"top_p": 1.5}, "top_p"),
    "min_p above 1": ({"min_p": 1.1}, "min_p"),
    "repetition penalty of 0": ({"repetition_penalty": 0.0}, "repetition_penalty"),
    "max_length_offset of 0": ({"max_length_offset": 0}, "max_length_offset"),
    "unknown penalty": ({"length_penalty": {"kind": "google"}}, "length_penalty.kind"),
    "not a number": ({"temperature": float("nan")}, "temperature"),
    "nbest above the beam size": ({"beam_size": 2, "nbest": 3}, "nbest"),
    "unknown key": ({"temprature": 0.5}, "temprature"),
}


@pytest.mark.parametrize(("values", "key"), WRONG.values(), ids=WRONG.keys())
def test_errors_name_the_wrong_key(values: dict, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        DecodeConfig(**values)
    assert caught.value.key == key
    assert str(caught.value).startswith(f"{key}: ")


@pytest.mark.parametrize(
    ("constraints", "message"),
    [
        (Constraints(prefix=(1, 2, 3), forbidden=((2, 3),)), "prefix contains a forbidden word"),
        (Constraints(required=((4, 5),), forbidden=((5,),)), "required word contains a forbidden word"),
        (Constraints(prefix=(1, 1, 1), required=((2, 3),)), "have 5 tokens.* at most 5"),
        (Constraints(prefix=(1,) * 6), "prefix has 6 tokens.* at most 5"),
    ],
)
def test_unsatisfiable_constraints_are_refused(constraints: Constraints, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_strategy(DecodeConfig(beam_size=2), [5], EOS, constraints=[constraints])


OPTIONS: dict[str, tuple[dict, dict, dict]] = {
    "none": ({"beam_size": 4}, {"beam_size": None}, {"beam_size": 4}),
    "a beam large enough": ({"beam_size": 4}, {"nbest": 6}, {"beam_size": 6, "nbest": 6}),
    "a beam that groups divide": ({}, {"beam_groups": 3}, {"beam_size": 6, "beam_groups": 3}),
    "alpha": ({}, {"length_penalty": 1}, {"length_penalty": {"alpha": 1.0}}),
    "alpha of no penalty": (
        {"length_penalty": {"kind": "none"}},
        {"length_penalty": 0.3},
        {"length_penalty": {"kind": "gnmt", "alpha": 0.3}},
    ),
    "sampling": (
        {"beam_size": 4, "nbest": 2},
        {"temperature": 0.5},
        {"beam_size": 1, "sample": True, "temperature": 0.5},
    ),
    "searching": ({"beam_size": 1, "sample": True, "top_k": 5}, {"beam_size": 3}, {"beam_size": 3, "top_k": 5}),
    "greedy": ({"beam_size": 1, "sample": True}, {"sample": False}, {"beam_size": 1}),
}


@pytest.mark.parametrize(("values", "options", "expected"), OPTIONS.values(), ids=OPTIONS.keys())
def test_options_imply_the_settings_that_they_need(values: dict, options: dict, expected: dict) -> None:
    assert DecodeConfig.read(values).with_options(options) == DecodeConfig.read(expected)


def test_representation_has_what_differs_from_the_defaults() -> None:
    assert repr(DecodeConfig()) == str(DecodeConfig()) == "DecodeConfig()"
    assert repr(DecodeConfig(beam_size=4, length_penalty=LengthPenalty(alpha=1.0))) == (
        "DecodeConfig(beam_size=4, length_penalty=LengthPenalty(alpha=1.0))"
    )
