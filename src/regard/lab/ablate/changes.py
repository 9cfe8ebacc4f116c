"""Changes of a recipe, each as a function from its settings to overrides.

The paper's Table 3 varies the base model by factors: a quarter of the key width, twice the hidden width. The same
factors apply to any other recipe, so a change is relative to the recipe's own sizes. A recipe that a change does not
apply to is refused with `NotApplicableError`, a sentence that the report repeats.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

Factor = int | Fraction
STACKS = ("encoder", "decoder")


class NotApplicableError(Exception):
    """This recipe has nothing that the variation could change; the message is the end of "skipped, because …"."""


@dataclass(frozen=True)
class Settings:
    """The settings of a recipe, with every default filled in."""

    values: Mapping[str, Any]
    short_words: int | None = None
    """The words of a short sentence: training on at most so many leaves sentences twice as long to test on."""

    @property
    def model(self) -> Mapping[str, Any]:
        return self.values["model"]  # type: ignore[no-any-return]

    @property
    def width(self) -> int:
        return int(self.model["width"])

    @property
    def is_translation(self) -> bool:
        return bool(self.values["task"] == "translation")

    def stacks(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """The name of each stack of layers, as part of a key, and its settings."""
        return ((f"model.{name}", self.model[name]) for name in STACKS if name in self.model)

    def attention(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """The key of each stack's attention, and its settings; multi-head attention only."""
        for key, stack in self.stacks():
            if stack["attention"]["kind"] != "multi_head":
                raise NotApplicableError(f"{key}.attention is of kind {stack['attention']['kind']!r}, not multi_head")
            yield f"{key}.attention", stack["attention"]

    def max_positions(self) -> int:
        """The number of positions that a model with learned ones needs."""
        data = self.values["data"]
        if not self.is_translation:
            return int(data["context_length"])
        # Both sides have their end token within max_length; a language model reads them as one sequence.
        return int(data["max_length"]) * (1 if "encoder" in self.model else 2) + 2


@dataclass(frozen=True)
class Change:
    """What a variation changes in a recipe."""

    overrides: dict[str, Any]
    setting: str
    """The changed setting as the table shows it, such as "h = 2, d_k = 128"."""
    notes: list[str] = field(default_factory=list)
    """What else had to change, or differs from the paper: sentences."""


ChangeFunction = Callable[[Settings], Change]


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
        own = _dropout_keys(settings)
        if not any(own.values()):
            if not factor:
                raise NotApplicableError("the recipe has no dropout")
            keys = [key for key in own if key.count(".") == 2]
            return Change(dict.fromkeys(keys, without_any), f"P_drop = {without_any:g}")
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
    return Change({"model.position": _position(settings, "learned")}, "learned positions", notes)


def big(settings: Settings) -> Change:
    """The paper's big model: twice as wide, with twice the heads and hidden features, and dropout 0.3."""
    overrides = _with_width(settings, 2) | _with_hidden(settings, 2)
    for key, attention in settings.attention():
        overrides[f"{key}.heads"] = 2 * attention["heads"]
        for name in ("head_dim", "value_head_dim"):  # twice the heads, each as wide as before
            overrides.pop(f"{key}.{name}", None)
        if attention["kv_heads"] is not None:
            overrides[f"{key}.kv_heads"] = 2 * attention["kv_heads"]
    own = {key: value for key, value in _dropout_keys(settings).items() if key.count(".") == 2}
    overrides |= {key: max(0.3, value) for key, value in own.items()}
    notes = [_lr_note(overrides), "The paper trained it three times as long as the base model; here it is as long."]
    return Change(overrides, "big", notes)


def other_norm_position(settings: Settings) -> Change:
    """Post-norm for a recipe with pre-norm, and the other way round."""
    current = {stack["norm_position"] for _, stack in settings.stacks()}
    if len(current) > 1:
        raise NotApplicableError("the encoder and the decoder have different norm positions")
    other = "post" if current == {"pre"} else "pre"
    if other == "post" and not all(stack["residual"] for _, stack in settings.stacks()):
        raise NotApplicableError("post-norm normalizes the residual sum, and the recipe has no residual connections")
    return Change({f"{key}.norm_position": other for key, _ in settings.stacks()}, f"{other}-norm")


def no_residual(settings: Settings) -> Change:
    if not any(stack["residual"] for _, stack in settings.stacks()):
        raise NotApplicableError("the recipe has no residual connections")
    overrides: dict[str, Any] = {f"{key}.residual": False for key, _ in settings.stacks()}
    posts = [f"{key}.norm_position" for key, stack in settings.stacks() if stack["norm_position"] == "post"]
    notes = ["Without a residual sum there is no post-norm, so norms come first."] if posts else []
    return Change(overrides | dict.fromkeys(posts, "pre"), "no residual", notes)


def no_scaling(settings: Settings) -> Change:
    keys = {f"{key}.similarity": attention["similarity"] for key, attention in settings.attention()}
    if set(keys.values()) != {"scaled"}:
        raise NotApplicableError("its attention is not scaled dot-product attention")
    return Change(dict.fromkeys(keys, "dot"), "no 1/√d_k")


def no_feed_forward(settings: Settings) -> Change:
    if all(stack["feed_forward"]["kind"] == "none" for _, stack in settings.stacks()):
        raise NotApplicableError("the recipe has no feed-forward networks")
    if any(stack.get("dense_prefix") is not None for _, stack in settings.stacks()):
        raise NotApplicableError("its first layers have a feed-forward of their own (dense_prefix)")
    return Change({f"{key}.feed_forward": {"kind": "none"} for key, _ in settings.stacks()}, "no feed-forward")


def no_output_projection(settings: Settings) -> Change:
    keys = {f"{key}.output_projection": attention["output_projection"] for key, attention in settings.attention()}
    if not all(keys.values()):
        raise NotApplicableError("the recipe has no output projection")
    return Change(dict.fromkeys(keys, False), "no W^O")


def other_combination(settings: Settings) -> Change:
    """Concatenated positions for a recipe that adds them, and the other way round."""
    position = settings.model["position"]
    if "combine" not in position:
        raise NotApplicableError(f"{position['kind']} positions are not combined with embeddings")
    rest = {key: value for key, value in position.items() if key not in ("combine", "features") and value is not None}
    if position["combine"] == "concatenate":
        return Change({"model.position": rest}, "positions added")
    features = max(2, settings.width // 4)
    combined = rest | {"combine": "concatenate", "features": features}
    return Change({"model.position": combined}, f"positions concatenated ({features} of {settings.width} features)")


def other_cross_kv(settings: Settings) -> Change:
    if "cross_kv" not in settings.model:
        raise NotApplicableError("a language model has no cross-attention")
    other = "shared" if settings.model["cross_kv"] == "per_layer" else "per_layer"
    shown = {"shared": "one K, V for all layers", "per_layer": "K, V per layer"}
    return Change({"model.cross_kv": other}, f"cross-attention: {shown[other]}")


def short_training(kind: str) -> ChangeFunction:
    """A scheme of positions, trained on short sentences (translation) or half of the context (language modeling)."""

    def change(settings: Settings) -> Change:
        own = settings.model["position"]
        position = dict(own) if own["kind"] == kind else _position(settings, kind)
        overrides: dict[str, Any] = {
            "model.position": {key: value for key, value in position.items() if value is not None}
        }
        if not settings.is_translation:
            length = settings.values["data"]["context_length"] // 2
            if not length or settings.values["data"]["packing"] == "packed":
                raise NotApplicableError("its rows are whole documents, which cannot be cut in half")
            return Change(overrides | {"data.context_length": length}, f"{kind}, context of {length}")
        if settings.short_words is None:
            raise NotApplicableError("its training data has too few sentences to tell short from long")
        return Change(overrides | {"data.filter.max_words": settings.short_words}, kind)

    return change


def _position(settings: Settings, kind: str) -> dict[str, Any]:
    return {"kind": kind} | ({"max_length": settings.max_positions()} if kind == "learned" else {})


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


def _dropout_keys(settings: Settings) -> dict[str, float]:
    """Every dropout probability of the model."""
    found = {"model.embedding.dropout": settings.model["embedding"]["dropout"]}
    for key, stack in settings.stacks():
        found[f"{key}.dropout"] = stack["dropout"]
        for part in ("attention", "feed_forward"):
            if "dropout" in stack[part]:
                found[f"{key}.{part}.dropout"] = stack[part]["dropout"]
    return found
