"""Every variation gives a valid recipe with the settings that it names, or says in a sentence why it does not apply."""

from typing import Any

import pytest

from regard.config import ConfigError
from regard.errors import UserError
from regard.lab.ablate.changes import base_setting
from regard.lab.ablate.settings import NotApplicableError, Settings
from regard.lab.ablate.variations import (
    FAMILIES,
    GROUPS,
    PAPER_BASE,
    VARIATIONS,
    Variation,
    describe_variations,
    select_variations,
)
from regard.model import build_meta, count_parameters
from regard.task.base import Recipe
from regard.task.recipe_io import read_recipe

BY_NAME = {one.name: one for one in VARIATIONS}
BOTH = ("encoder", "decoder")
MULTI30K: dict[str, dict[str, Any]] = {
    "heads-1": {"encoder.attention.heads": 1, "decoder.attention.heads": 1},
    "heads-half": {"encoder.attention.heads": 2},
    "heads-double": {"encoder.attention.heads": 8},
    "heads-quadruple": {"decoder.attention.heads": 16},
    "keys-quarter": {"encoder.attention.head_dim": 16, "encoder.attention.value_head_dim": 64},
    "keys-half": {"decoder.attention.head_dim": 32, "decoder.attention.value_head_dim": 64},
    "layers-third": {"encoder.layers": 1, "decoder.layers": 1},
    "layers-two-thirds": {"encoder.layers": 3, "decoder.layers": 3},
    "layers-four-thirds": {"encoder.layers": 5, "decoder.layers": 5},
    "width-half": {"width": 128, "encoder.attention.heads": 4, "encoder.feed_forward.hidden": 640},
    "width-double": {"width": 512, "decoder.attention.heads": 4},
    "hidden-half": {"encoder.feed_forward.hidden": 320, "decoder.feed_forward.hidden": 320},
    "hidden-double": {"encoder.feed_forward.hidden": 1280, "decoder.feed_forward.hidden": 1280},
    "dropout-0": {"encoder.dropout": 0.0, "decoder.attention.dropout": 0.0, "embedding.dropout": 0.0},
    "dropout-double": {"encoder.dropout": 0.4, "encoder.attention.dropout": 0.2, "embedding.dropout": 0.4},
    "positions-learned": {"position.kind": "learned"},
    "big": {"width": 512, "encoder.attention.heads": 8, "decoder.feed_forward.hidden": 1280, "encoder.dropout": 0.3},
    "norm": {"encoder.norm_position": "post", "decoder.norm_position": "post"},
    "no-residual": {"encoder.residual": False, "decoder.residual": False},
    "no-scaling": {"encoder.attention.similarity": "dot", "decoder.attention.similarity": "dot"},
    "no-feed-forward": {"encoder.feed_forward.kind": "none", "decoder.feed_forward.kind": "none"},
    "no-output-projection": {"encoder.attention.output_projection": False},
    "combination": {"position.combine": "concatenate", "position.features": 64, "tie_weights": False},
    "cross-kv": {"cross_kv": "shared"},
    "short-sinusoidal": {"position.kind": "sinusoidal"},
    "short-learned": {"position.kind": "learned"},
    "short-rotary": {"position.kind": "rotary"},
    "short-none": {"position.kind": "none"},
    "short-index": {"position.kind": "index"},
    "short-binary": {"position.kind": "binary"},
}
TRAINING: dict[str, dict[str, Any]] = {
    "smoothing-0": {"train.loss.label_smoothing": 0.0},
    "smoothing-0.2": {"train.loss.label_smoothing": 0.2},
    "width-half": {"train.schedule.lr": pytest.approx(0.002 * 2**0.5, rel=1e-3)},
    "big": {"train.schedule.lr": pytest.approx(0.002 / 2**0.5, rel=1e-3)},
    "dropout-0": {"train.loss.r_drop": 0.0},
    "short-none": {"data.filter.max_words": 13},
}


def changed(name: str, variation: Variation, short_words: int | None = 13) -> Recipe:
    settings = Settings(read_recipe(name).resolved(), short_words)
    return read_recipe(name, variation.change(settings).overrides)


def at(values: Any, key: str) -> Any:
    for part in key.split("."):
        values = values[part]
    return values


def parameters(recipe: Recipe) -> int:
    return count_parameters(build_meta(recipe.expected_model_config))


@pytest.mark.parametrize("variation", VARIATIONS, ids=lambda one: one.name)
def test_variation_of_multi30k_has_its_settings(variation: Variation) -> None:
    values = changed("multi30k-en-de", variation).resolved()
    expected = {f"model.{key}": value for key, value in MULTI30K.get(variation.name, {}).items()}
    expected |= TRAINING.get(variation.name, {})
    assert expected
    assert {key: at(values, key) for key in expected} == expected


def test_heads_at_constant_compute_keep_the_parameters() -> None:
    base = parameters(read_recipe("multi30k-en-de"))
    for name in ("heads-1", "heads-half", "heads-double", "heads-quadruple"):
        assert parameters(changed("multi30k-en-de", BY_NAME[name])) == base


@pytest.mark.parametrize("name", ["keys-quarter", "keys-half", "layers-third", "width-half", "hidden-half"])
def test_smaller_models_have_fewer_parameters(name: str) -> None:
    assert parameters(changed("multi30k-en-de", BY_NAME[name])) < parameters(read_recipe("multi30k-en-de"))


def test_sizes_of_the_papers_model_are_those_of_table_3() -> None:
    """What each adds to the base or takes from it, in millions. Printed counts are rounded, and those of the authors
    have slightly more embeddings."""
    base = parameters(read_recipe("transformer-base"))
    for variation in VARIATIONS:
        if variation.paper is not None and variation.paper.parameters is not None:
            assert PAPER_BASE.parameters is not None
            printed = variation.paper.parameters - PAPER_BASE.parameters
            ours = parameters(changed("transformer-base", variation)) - base
            assert ours / 1e6 == pytest.approx(printed, abs=3.5), variation.name


def test_variations_that_do_not_apply_say_why() -> None:
    reasons = {
        ("quick-lm", "cross-kv"): "a language model has no cross-attention",
        ("quick-lm", "combination"): "rotary positions are not combined with embeddings",
        ("quick-lm", "smoothing-0"): "train.loss.label_smoothing is 0 already",
        ("shakespeare-cpu", "dropout-0"): "the recipe has no dropout",
    }
    for (recipe, name), reason in reasons.items():
        with pytest.raises(NotApplicableError) as caught:
            changed(recipe, BY_NAME[name])
        assert str(caught.value) == reason
    with pytest.raises(NotApplicableError, match="too few sentences for it"):
        changed("multi30k-en-de", BY_NAME["short-none"], short_words=None)


@pytest.mark.parametrize("recipe", ["quick", "quick-lm", "multi30k-en-de-lm", "shakespeare-cpu", "transformer-base"])
def test_variations_of_other_recipes_are_valid_or_do_not_apply(recipe: str) -> None:
    applied = 0
    for variation in VARIATIONS:
        try:
            build_meta(changed(recipe, variation).expected_model_config)
        except NotApplicableError:
            continue
        except ConfigError as error:  # the sweep skips it with this sentence
            pytest.fail(f"{variation.name}: {error}")
        applied += 1
    assert applied >= len(VARIATIONS) - 4


def test_settings_of_the_base_are_the_papers() -> None:
    shown = base_setting(Settings(read_recipe("transformer-base").resolved()))
    assert shown == PAPER_BASE.setting.replace("d_k = d_v", "d_k")


def test_norm_position_is_changed_back_for_a_model_with_post_norm() -> None:
    settings = Settings(read_recipe("transformer-base").resolved())
    change = BY_NAME["norm"].change(settings)
    assert change.overrides == {f"model.{name}.norm_position": "pre" for name in BOTH}
    assert change.expects == {"steps": "lower"}


def test_only_selects_families_and_names() -> None:
    assert [one.name for one in select_variations(["smoothing", "big"])] == ["smoothing-0", "smoothing-0.2", "big"]
    assert select_variations(None) == list(VARIATIONS)
    with pytest.raises(UserError, match=r"there is no variation 'head'; did you mean 'heads'\?"):
        select_variations(["head"])
    with pytest.raises(UserError, match="name some of heads, keys, layers"):
        select_variations([])


def test_names_and_groups_are_consistent() -> None:
    assert len(BY_NAME) == len(VARIATIONS)
    assert {one.group for one in VARIATIONS} == set(GROUPS)
    assert all(one.against == "base" or one.against in BY_NAME for one in VARIATIONS)
    listed = describe_variations()
    assert all(name in listed for name in (*BY_NAME, *FAMILIES))
