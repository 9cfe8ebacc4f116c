"""The changes of Table 3, each as a function from a recipe's settings to overrides.

The paper varies the base model by factors: a quarter of the key width, twice the hidden width. The same factors apply
to any other recipe, so a change is relative to the recipe's own sizes. A recipe that a change does not apply to is
refused with `NotApplicableError`, a sentence that the report repeats.
"""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from regard.lab.ablate.settings import Change, ChangeFunction, Direction, Factor, NotApplicableError, Settings


def heads(factor: Factor | None) -> ChangeFunction:
    """Another number of heads, as many times the recipe's (None: a single head), at constant compute: heads · d_k and
    heads · d_v stay as they are."""

    def change(settings: Settings) -> Change:
        overrides: dict[str, Any] = {}
        shown = ""
        for key, attention in settings.attention():
            own = attention["heads"]
            count = 1 if factor is None else _times(own, factor, "the number of heads")
            if count == own:
                raise NotApplicableError(f"{key}.heads is {own} already")
            overrides[f"{key}.heads"] = count
            sizes = _head_sizes(settings, attention)
            for name, total in (("head_dim", own * sizes[0]), ("value_head_dim", own * sizes[1])):
                if total % count:
                    raise NotApplicableError(f"{count} heads do not divide the {total} features of all heads together")
                if attention[name] is not None:
                    overrides[f"{key}.{name}"] = total // count
            if (kv_heads := attention["kv_heads"]) not in (None, own):
                overrides[f"{key}.kv_heads"] = _times(kv_heads, Fraction(count, own), "the number of KV heads")
            shown = shown or f"h = {count}, d_k = {own * sizes[0] // count}"
        return Change(overrides, shown)

    return change


def key_width(factor: Factor) -> ChangeFunction:
    """Narrower keys and queries; values keep their width."""

    def change(settings: Settings) -> Change:
        overrides: dict[str, Any] = {}
        shown = ""
        for key, attention in settings.attention():
            head_dim, value_head_dim = _head_sizes(settings, attention)
            width = _times(head_dim, factor, "the key width")
            overrides |= {f"{key}.head_dim": width, f"{key}.value_head_dim": value_head_dim}
            shown = shown or f"d_k = {width}"
        return Change(overrides, shown)

    return change


def layers(factor: Factor) -> ChangeFunction:
    """More or fewer layers in every stack, rounded."""

    def change(settings: Settings) -> Change:
        own = {key: stack["layers"] for key, stack in settings.stacks()}
        counts = {key: max(1, round(count * factor)) for key, count in own.items()}
        if counts == own:
            least = min(own.values())
            raise NotApplicableError(f"{float(factor):.2g} times {least} layers is the same number, rounded")
        shown = " + ".join(map(str, dict.fromkeys(counts.values())))
        return Change({f"{key}.layers": count for key, count in counts.items()}, f"N = {shown}")

    return change


def width(factor: Factor) -> ChangeFunction:
    """Another width of the model, with as many heads of another width. The learning rate follows it as in the paper,
    where it is proportional to width^-½ (equation 3)."""

    def change(settings: Settings) -> Change:
        overrides = _with_width(settings, factor)
        return Change(overrides, f"d_model = {overrides['model.width']}", [_lr_note(overrides)])

    return change


def hidden(factor: Factor) -> ChangeFunction:
    """Another width of the feed-forward networks."""

    def change(settings: Settings) -> Change:
        overrides = _with_hidden(settings, factor)
        return Change(overrides, f"d_ff = {next(iter(overrides.values()))}")

    return change


def dropout(factor: int, without_any: float) -> ChangeFunction:
    """All dropout probabilities times a factor; of a recipe without dropout, `without_any` for embeddings and
    sublayers."""

    def change(settings: Settings) -> Change:
        own = dropout_keys(settings)
        if not any(own.values()):
            if not factor:
                raise NotApplicableError("the recipe has no dropout")
            keys = [key for key in own if key.count(".") == 2]
            notes = ["The recipe has no dropout, so this adds some, and is expected to help."]
            better: dict[str, Direction] = {"ppl": "lower", "bleu": "higher", "gap": "lower"}
            return Change(dict.fromkeys(keys, without_any), f"P_drop = {without_any:g}", notes, better)
        overrides: dict[str, Any] = {key: round(value * factor, 6) for key, value in own.items()}
        if max(overrides.values()) >= 1:
            raise NotApplicableError(f"{factor} times a dropout of {max(own.values()):g} is no probability")
        notes = []
        if not factor and settings.values["train"]["loss"]["r_drop"]:
            overrides["train.loss.r_drop"] = 0.0
            notes.append("R-Drop is off too, because its two passes differ only by dropout.")
        return Change(overrides, f"P_drop = {max(float(overrides[key]) for key in own):g}", notes)

    return change


def label_smoothing(value: float) -> ChangeFunction:
    def change(settings: Settings) -> Change:
        if settings.values["train"]["loss"]["label_smoothing"] == value:
            raise NotApplicableError(f"train.loss.label_smoothing is {value:g} already")
        return Change({"train.loss.label_smoothing": value}, f"ε_ls = {value:g}")

    return change


def learned_positions(settings: Settings) -> Change:
    kind = settings.model["position"]["kind"]
    if kind == "learned":
        raise NotApplicableError("the recipe's positions are learned already")
    notes = [] if kind == "sinusoidal" else [f"The recipe's own positions are {kind}, not sinusoidal as in the paper."]
    return Change({"model.position": settings.position("learned")}, "learned positions", notes)


def big(settings: Settings) -> Change:
    """The paper's big model: twice as wide, with twice the heads and hidden features, and dropout 0.3."""
    overrides = _with_width(settings, 2) | _with_hidden(settings, 2)
    for key, attention in settings.attention():
        overrides[f"{key}.heads"] = 2 * attention["heads"]
        for name in ("head_dim", "value_head_dim"):  # twice the heads, each as wide as before
            overrides.pop(f"{key}.{name}", None)
        if attention["kv_heads"] is not None:
            overrides[f"{key}.kv_heads"] = 2 * attention["kv_heads"]
    own = {key: value for key, value in dropout_keys(settings).items() if key.count(".") == 2}
    overrides |= {key: max(0.3, value) for key, value in own.items()}
    notes = [_lr_note(overrides), "The paper trained it three times as long as the base model; here it is as long."]
    size = overrides["model.width"]
    heads, hidden = (
        next(value for key, value in overrides.items() if key.endswith(end)) for end in (".heads", ".hidden")
    )
    shown = f"d_model = {size}, d_ff = {hidden}, h = {heads}, P_drop = {max(overrides[key] for key in own):g}"
    return Change(overrides, shown, notes)


def base_setting(settings: Settings) -> str:
    """The recipe's own settings in the paper's symbols; those of the decoder, where the stacks differ."""
    stack, smoothing = settings.model["decoder"], settings.values["train"]["loss"]["label_smoothing"]
    parts = [f"N = {stack['layers']}", f"d_model = {settings.width}"]
    if (hidden := stack["feed_forward"].get("hidden")) is not None:
        parts.append(f"d_ff = {hidden}")
    if stack["attention"]["kind"] == "multi_head":
        parts += [f"h = {stack['attention']['heads']}", f"d_k = {_head_sizes(settings, stack['attention'])[0]}"]
    return ", ".join([*parts, f"P_drop = {max(dropout_keys(settings).values()):g}", f"ε_ls = {smoothing:g}"])


def _times(size: int, factor: Factor, what: str) -> int:
    scaled = size * Fraction(factor)
    if scaled.denominator != 1 or scaled < 1:
        raise NotApplicableError(f"{what} ({size}) cannot be multiplied by {factor}")
    return int(scaled)


def _head_sizes(settings: Settings, attention: Mapping[str, Any]) -> tuple[int, int]:
    """The features of a head's keys and of its values."""
    head_dim = attention["head_dim"] or settings.width // attention["heads"]
    return head_dim, attention["value_head_dim"] or head_dim


def _with_width(settings: Settings, factor: Factor) -> dict[str, Any]:
    overrides: dict[str, Any] = {"model.width": _times(settings.width, factor, "the width")}
    for key, attention in settings.attention():
        if settings.width * factor % attention["heads"] and attention["head_dim"] is None:
            raise NotApplicableError(f"{attention['heads']} heads do not divide a width of {overrides['model.width']}")
        for name in ("head_dim", "value_head_dim"):
            if attention[name] is not None:
                overrides[f"{key}.{name}"] = _times(attention[name], factor, f"{key}.{name}")
    if features := settings.model["position"].get("features"):
        overrides["model.position.features"] = _times(features, factor, "position.features")
    lr = settings.values["train"]["schedule"]["lr"]
    return overrides | {"train.schedule.lr": float(f"{lr * float(factor) ** -0.5:.4g}")}


def _lr_note(overrides: Mapping[str, Any]) -> str:
    return f"The learning rate is {overrides['train.schedule.lr']:g}, in proportion to width^-½ as in the paper."


def _with_hidden(settings: Settings, factor: Factor) -> dict[str, Any]:
    overrides = {}
    for key, stack in settings.stacks():
        if stack["feed_forward"]["kind"] == "none":
            raise NotApplicableError("the recipe has no feed-forward networks")
        size = stack["feed_forward"]["hidden"]
        overrides[f"{key}.feed_forward.hidden"] = _times(size, factor, "the hidden width")
    return overrides


def dropout_keys(settings: Settings) -> dict[str, float]:
    """Every dropout probability of the model."""
    found = {"model.embedding.dropout": settings.model["embedding"]["dropout"]}
    for key, stack in settings.stacks():
        found[f"{key}.dropout"] = stack["dropout"]
        for part in ("attention", "feed_forward"):
            if "dropout" in stack[part]:
                found[f"{key}.{part}.dropout"] = stack[part]["dropout"]
    return found
