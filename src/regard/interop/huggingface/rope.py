"""Rotary settings in their two spellings, and which of our scalings each kind is.

Newer files have one table, `rope_parameters`, with `rope_type` and `rope_theta` in it; older ones have `rope_theta`
beside a table `rope_scaling` whose kind may be called `type`. Where a file has both, `rope_scaling` is the one read by
their library, so it is here.
"""

import math
from collections.abc import Callable

from regard.attention import BandScaling, DynamicScaling, LinearScaling, LongScaling, YarnScaling
from regard.attention.rotary import AnyScaling
from regard.errors import UserError
from regard.interop.huggingface.settings import Settings


def read_rotary(settings: Settings) -> tuple[float, AnyScaling | None]:
    """The base of the angles, and how they are slowed down for longer texts, if they are."""
    table = rotary_table(settings)
    for place in (settings, table):
        place.must_be("partial_rotary_factor", 1, "its rotary positions turn every feature of a head")
    nested = next((key for key, value in table.values.items() if isinstance(value, dict)), None)
    if nested is not None:
        raise UserError(
            f"{table.where} gives {nested} angles of its own, but regard has the same angles in every layer; "
            "a model like that cannot be imported."
        )
    base = table.number("rope_theta") if table.has("rope_theta") else settings.number("rope_theta", 10_000.0)
    read = table.choice("rope_type" if table.has("rope_type") else "type", KINDS, "default")
    return base, read(table, settings)


def rotary_table(settings: Settings) -> Settings:
    """The table that speaks of angles; an empty one where there is none."""
    return settings.table("rope_scaling") or settings.table("rope_parameters") or Settings({}, settings.where)


def growth(factor: float, strength: float = 1.0) -> float:
    """By how much YaRN sharpens attention that was stretched so far (their `get_mscale`)."""
    return 0.1 * strength * math.log(factor) + 1 if factor > 1 else 1.0


def _default(table: Settings, settings: Settings) -> AnyScaling | None:
    return None


def _linear(table: Settings, settings: Settings) -> AnyScaling | None:
    return LinearScaling(factor=table.number("factor"))


def _dynamic(table: Settings, settings: Settings) -> AnyScaling | None:
    """Their trained length is the longest the settings give, whatever the table says."""
    return DynamicScaling(factor=table.number("factor"), trained=_longest(settings))


def _yarn(table: Settings, settings: Settings) -> AnyScaling | None:
    factor, trained = _factor(table, settings), _trained(table, settings)
    return YarnScaling(
        factor=factor,
        trained=trained,
        fast=table.number("beta_fast", 32.0) or 32.0,
        slow_turns=table.number("beta_slow", 1.0) or 1.0,
        sharpness=_yarn_sharpness(table, factor),
        truncate=table.flag("truncate", True),
    )


def _yarn_sharpness(table: Settings, factor: float) -> float | None:
    """What cosine and sine are multiplied by, where the table does not leave it to the formula of the paper.

    `mscale` and `mscale_all_dim` together (DeepSeek's spelling) give a quotient of two such formulas.
    """
    if table.has("attention_factor"):
        return table.number("attention_factor")
    above, below = table.number("mscale", 0.0), table.number("mscale_all_dim", 0.0)
    if not (above and below):
        return None
    return growth(factor, above) / growth(factor, below)


def _long(table: Settings, settings: Settings) -> AnyScaling | None:
    factor, trained = _factor(table, settings), _trained(table, settings)
    sharpness = math.sqrt(1 + math.log(factor) / math.log(trained)) if factor > 1 and trained > 1 else 1.0
    return LongScaling(
        short_factors=table.numbers("short_factor"),
        long_factors=table.numbers("long_factor"),
        trained=trained,
        sharpness=table.number("attention_factor", sharpness),
    )


def _band(table: Settings, settings: Settings) -> AnyScaling | None:
    low, high = table.number("low_freq_factor"), table.number("high_freq_factor")
    if high <= low:
        raise table.wrong("high_freq_factor", f"more than low_freq_factor, which is {low:g}")
    return BandScaling(factor=table.number("factor"), trained=_trained(table, settings), low=low, high=high)


def _longest(settings: Settings) -> int:
    return settings.whole("max_position_embeddings", 2048)


def _trained(table: Settings, settings: Settings) -> int:
    """The length before it was stretched: their library looks beside the table first, then in it."""
    key = "original_max_position_embeddings"
    return settings.whole(key) if settings.has(key) else table.whole(key, _longest(settings))


def _factor(table: Settings, settings: Settings) -> float:
    """How far the length was stretched; where it is not given, it follows from the two lengths."""
    factor = table.number("factor", _longest(settings) / _trained(table, settings))
    if factor <= 0:
        raise table.wrong("factor", "a number above 0")
    return factor


KINDS: dict[str, Callable[[Settings, Settings], AnyScaling | None]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "longrope": _long,
    "llama3": _band,
}
"""Every kind of rotary scaling there is a part for, by their name for it."""
