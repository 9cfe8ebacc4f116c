"""What all pipelines share: a string or a list, options as keywords, details on request, short reprs."""

from typing import Any

import pytest

from regard import UserError
from regard.data.trees.tree import Tree
from regard.task.language_modeling.pipeline import GeneratedText
from regard.task.parsing.pipeline import ParsedSentence
from regard.task.translation.result import TranslatedText
from tests.look.support import sample_image, task_models

TEXTS = ["the old cat", "a big sea, isn't it?", "the cat slept"]
MASKED = ["the [MASK] cat", "a [MASK] sea [MASK]"]
CALLS: dict[str, tuple[str, list[Any], list[dict[str, Any]]]] = {
    "translation": ("translate", TEXTS, [{}, {"beam_size": 1}, {"nbest": 2}, {"details": True}, {"split": False}]),
    "language-modeling": (
        "generate",
        TEXTS,
        [{"max_new_tokens": 4, **more} for more in ({"beam_size": 2}, {"sample": False}, {"beam_size": 2, "nbest": 3})],
    ),
    "parsing": ("parse", TEXTS, [{}, {"beam_size": 1}, {"tokenized": True}, {"details": True}]),
    "masked-lm": ("fill", MASKED, [{}, {"top": 2}, {"top": 2, "pieces": True}, {"tokens_per_mask": 2}]),
    "text-classification": ("classify", TEXTS, [{}, {"top": 1}]),
    "token-classification": ("tag", TEXTS, [{}, {"tokenized": True}]),
    "image-classification": ("classify", [sample_image(seed=1), sample_image(seed=2)], [{}, {"top": 1}]),
}


def pipeline(task: str) -> Any:
    return task_models()[task].pipeline  # type: ignore[attr-defined]


def plain(value: Any) -> Any:
    """Results without probabilities, which differ by rounding between batches."""
    if isinstance(value, TranslatedText):
        return value.texts
    if isinstance(value, ParsedSentence):
        return value.tree
    if isinstance(value, float):
        return round(value, 4)
    return [plain(each) for each in value] if isinstance(value, list | tuple) and value != () else value


@pytest.mark.parametrize("task", CALLS)
def test_list_gives_the_list_of_single_results(task: str) -> None:
    name, inputs, calls = CALLS[task]
    call = getattr(pipeline(task), name)
    for options in calls:
        assert plain(call(inputs, **options)) == plain([call(each, **options) for each in inputs]), options
        assert call([], **options) == []


def test_nbest_is_a_list_and_details_have_scores() -> None:
    translator, generator = pipeline("translation"), pipeline("language-modeling")
    best, second = translator.translate(TEXTS[0], nbest=2)
    found = translator.translate(TEXTS[0], nbest=2, details=True, alternatives=3)
    assert (found.texts, found.text) == ((best, second), translator.translate(TEXTS[0]))
    ((source, (first, other)),) = found.sentences
    assert (source, first.text, first.score >= other.score) == (TEXTS[0], best, True)
    assert len(first.alternatives) == len(first.token_logprobs)
    sampled = generator.generate(TEXTS[0], nbest=3, max_new_tokens=5, details=True)
    assert all(isinstance(one, GeneratedText) for one in sampled)
    assert generator.generate(TEXTS[0], nbest=3, max_new_tokens=5) == [one.text for one in sampled]
    assert isinstance(pipeline("parsing").parse(TEXTS[2]), Tree)


def test_seeds_of_samples_are_those_of_the_command() -> None:
    """Sample r of prompt p has the seed `seed + p · nbest + r`."""
    generator = pipeline("language-modeling")
    settings: dict[str, Any] = {"max_new_tokens": 6, "temperature": 2.0}
    both = generator.generate(TEXTS[:2], nbest=2, seed=5, **settings)
    alone = [generator.generate(TEXTS[number // 2], seed=5 + number, **settings) for number in range(4)]
    assert [*both[0], *both[1]] == alone
    assert len(set(alone)) > 1
    assert "".join(generator.stream(TEXTS[0], seed=5, **settings)) == alone[0]


def test_constraints_take_one_word_or_several() -> None:
    translator, generator = pipeline("translation"), pipeline("language-modeling")
    for require in ("mouse", ["mouse"]):
        assert "mouse" in translator.translate(TEXTS[0], require=require)
        assert "mouse" in generator.generate(TEXTS[0], require=require, beam_size=3, max_new_tokens=12)
    whole = generator.generate(TEXTS[0], sample=False, max_new_tokens=12)
    assert (
        generator.generate(TEXTS[0], sample=False, max_new_tokens=12, stop=whole[3]) == whole[: whole.index(whole[3])]
    )
    with pytest.raises(UserError, match=r"require: .*beam_size"):
        generator.generate(TEXTS[0], require="mouse")


@pytest.mark.parametrize(("task", "options", "nearest"), [
    ("translation", {"beam_sise": 3}, "beam_size"),
    ("translation", {"required": ["a"]}, "require"),
    ("language-modeling", {"max_tokens": 3}, "max_new_tokens"),
    ("parsing", {"tokenised": True}, "tokenized"),
])  # fmt: skip
def test_unknown_keyword_names_the_nearest(task: str, options: dict[str, Any], nearest: str) -> None:
    (name,) = options
    with pytest.raises(TypeError, match=f"{CALLS[task][0]}.*{name!r}; did you mean {nearest!r}"):
        getattr(pipeline(task), CALLS[task][0])(TEXTS[0], **options)


def test_wrong_values_name_their_key() -> None:
    for options, key in (
        ({"beam_size": 0}, "beam_size"),
        ({"top_p": 2.0}, "top_p"),
        ({"nbest": 2, "seed": 1}, "nbest"),
    ):
        with pytest.raises(UserError, match=f"^{key}: "):
            pipeline("translation").translate(TEXTS[0], **options)
    with pytest.raises(UserError, match=r"^nbest: "):
        pipeline("parsing").parse(TEXTS[0], nbest=2)
    with pytest.raises(UserError, match=r"^nbest: "):
        pipeline("language-modeling").generate(TEXTS[0], nbest=0)


@pytest.mark.parametrize("task", CALLS)
def test_representations_are_one_short_line(task: str) -> None:
    name, inputs, calls = CALLS[task]
    model = pipeline(task)
    assert repr(model).startswith(f"{type(model).__name__}(")
    assert "parameters" in repr(model)
    details = getattr(model, name)(inputs[0], **(calls[-1] if "details" in calls[-1] else {}))
    for one in (model, details, model.config, getattr(model, "decode", None)):
        assert "\n" not in repr(one)
        assert len(repr(one)) < 1200
