"""Changes of the design: norm position, residual connections, scaling, feed-forward, W^O, positions, cross-attention.

Some are switches, so a recipe that has the other design already is changed back to the first.
"""

from typing import Any

from regard.lab.ablate.settings import Change, ChangeFunction, NotApplicableError, Settings


def other_norm_position(settings: Settings) -> Change:
    """Post-norm for a recipe with pre-norm, and the other way round."""
    current = {stack["norm_position"] for _, stack in settings.stacks()}
    if len(current) > 1:
        raise NotApplicableError("the encoder and the decoder have different norm positions")
    other = "post" if current == {"pre"} else "pre"
    if other == "post" and not all(stack["residual"] for _, stack in settings.stacks()):
        raise NotApplicableError("post-norm normalizes the residual sum, and the recipe has no residual connections")
    overrides = {f"{key}.norm_position": other for key, _ in settings.stacks()}
    return Change(overrides, f"{other}-norm", expects={"steps": "higher" if other == "post" else "lower"})


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
    overrides: dict[str, Any] = {"model.position": rest | {"combine": "concatenate", "features": features}}
    notes = []
    if settings.model["tie_weights"]:
        overrides["model.tie_weights"] = False
        notes.append("The output layer has weights of its own: embeddings beside positions are too narrow to be tied.")
    return Change(overrides, f"positions concatenated ({features} of {settings.width} features)", notes)


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
        position = dict(own) if own["kind"] == kind else settings.position(kind)
        overrides: dict[str, Any] = {
            "model.position": {key: value for key, value in position.items() if value is not None}
        }
        if not settings.is_translation:
            length = settings.values["data"]["context_length"] // 2
            if not length or settings.values["data"]["packing"] == "packed":
                raise NotApplicableError("its rows are whole documents, which cannot be cut in half")
            return Change(overrides | {"data.context_length": length}, f"{kind}, context of {length}")
        if settings.short_words is None:
            raise NotApplicableError("its training data cannot be read, or has too few sentences for it")
        return Change(overrides | {"data.filter.max_words": settings.short_words}, kind)

    return change
