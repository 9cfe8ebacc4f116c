"""`/v1/completions`, asked by OpenAI's own client."""

import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from regard.task.language_modeling.pipeline import TextGenerator
from regard.task.translation.pipeline import Translator

PROMPT = "the old cat"


def texts(completion: Any) -> list[str]:
    return [choice.text for choice in completion.choices]


def streamed(chunks: Any, n: int = 1) -> tuple[list[dict[str, Any]], Any]:
    """The outputs of a stream put together, and its usage."""
    outputs: list[dict[str, Any]] = [{"text": "", "tokens": [], "logprobs": [], "offsets": []} for _ in range(n)]
    usage = None
    for chunk in chunks:
        usage = usage or chunk.usage
        for choice in chunk.choices:
            output = outputs[choice.index]
            output["text"] += choice.text
            output["finish_reason"] = choice.finish_reason
            if choice.logprobs is not None:
                output["tokens"] += choice.logprobs.tokens
                output["logprobs"] += choice.logprobs.token_logprobs
                output["offsets"] += choice.logprobs.text_offset
    return outputs, usage


@pytest.mark.parametrize("settings", [{"temperature": 0}, {"temperature": 0.7, "top_p": 0.9}, {}])
def test_completion_is_what_the_pipeline_generates(
    client: openai.OpenAI, small_language_model: TextGenerator, settings: dict[str, float]
) -> None:
    found = client.completions.create(model="lm", prompt=[PROMPT, "a mouse"], max_tokens=12, seed=5, **settings)
    options: dict[str, Any] = {"seed": 5, "temperature": 1.0, "top_k": 0, **settings}
    expected = small_language_model.generate([PROMPT, "a mouse"], max_new_tokens=12, **options)
    assert texts(found) == expected
    prompts = small_language_model.tokenizer.encode_batch([PROMPT, "a mouse"])
    assert found.usage is not None
    assert found.usage.prompt_tokens == sum(len(ids) + 1 for ids in prompts)
    assert found.usage.total_tokens == found.usage.prompt_tokens + found.usage.completion_tokens


@pytest.mark.parametrize("stop", [None, "C", ["n", "7", "ou"]])
@pytest.mark.parametrize("temperature", [0, 1.3])
def test_stream_equals_answer_at_once(client: openai.OpenAI, stop: Any, temperature: float) -> None:
    request: dict[str, Any] = {"model": "lm", "prompt": PROMPT, "max_tokens": 20, "temperature": temperature}
    request |= {"seed": 11, "n": 3, "logprobs": 2, "stop": stop}
    whole = client.completions.create(**request)
    outputs, usage = streamed(
        client.completions.create(stream=True, stream_options={"include_usage": True}, **request), 3
    )
    assert [output["text"] for output in outputs] == texts(whole)
    assert usage == whole.usage
    for output, choice in zip(outputs, whole.choices, strict=True):
        assert choice.logprobs is not None
        assert output["finish_reason"] == choice.finish_reason
        assert output["tokens"] == choice.logprobs.tokens
        assert output["logprobs"] == pytest.approx(choice.logprobs.token_logprobs, abs=1e-4)
        assert output["offsets"] == choice.logprobs.text_offset


def test_samples_have_seeds_one_after_another(client: openai.OpenAI) -> None:
    request: dict[str, Any] = {"model": "lm", "prompt": PROMPT, "max_tokens": 10}
    several = client.completions.create(n=3, seed=20, **request)
    alone = [client.completions.create(seed=20 + number, **request) for number in range(3)]
    assert texts(several) == [text for one in alone for text in texts(one)]
    assert len(set(texts(several))) == 3
    assert several.usage.prompt_tokens == alone[0].usage.prompt_tokens  # type: ignore[union-attr]
    assert len({*texts(client.completions.create(n=2, **request)), *texts(client.completions.create(**request))}) == 3


def test_output_does_not_depend_on_company(client: openai.OpenAI) -> None:
    def request(number: int) -> list[str]:
        settings = {"temperature": 0.9 if number % 3 else 0, "max_tokens": 8 + 3 * number}
        found = client.completions.create(model="lm", prompt=PROMPT * (1 + number % 4), seed=number, n=2, **settings)
        return texts(found)

    alone = [request(number) for number in range(17)]
    with ThreadPoolExecutor(17) as pool:
        assert list(pool.map(request, range(17))) == alone


def test_logprobs_are_those_of_the_tokens(client: openai.OpenAI, small_language_model: TextGenerator) -> None:
    found = client.completions.create(model="lm", prompt=PROMPT, max_tokens=9, seed=1, logprobs=3).choices[0]
    (expected,) = small_language_model.generate(
        [PROMPT], max_new_tokens=9, temperature=1.0, top_k=0, seed=1, details=True, alternatives=3
    )
    logprobs = found.logprobs
    assert logprobs is not None
    assert logprobs.token_logprobs == pytest.approx(expected.token_logprobs, abs=1e-4)
    assert "".join(logprobs.tokens or []) == found.text == expected.text
    assert logprobs.text_offset == [len("".join(logprobs.tokens[:end])) for end in range(9)]  # type: ignore[index]
    for top, alternatives in zip(logprobs.top_logprobs or [], expected.alternatives, strict=True):
        assert max(top.values()) == pytest.approx(alternatives[0][1], abs=1e-4)
        assert sum(map(math.exp, top.values())) <= 1
    chosen = client.completions.create(model="lm", prompt=PROMPT, max_tokens=9, seed=1, logprobs=0).choices[0].logprobs
    assert chosen is not None
    assert chosen.top_logprobs is None
    assert chosen.token_logprobs == pytest.approx(logprobs.token_logprobs, abs=1e-4)


def test_stop_strings_end_the_text_and_are_not_in_it(client: openai.OpenAI) -> None:
    request: dict[str, Any] = {"model": "lm", "prompt": PROMPT, "max_tokens": 20, "seed": 4}
    full = client.completions.create(**request)
    text = full.choices[0].text
    stop = text[6:8]
    cut = client.completions.create(stop=[stop], **request)
    assert cut.choices[0].text == text[: text.index(stop)]
    assert (full.choices[0].finish_reason, cut.choices[0].finish_reason) == ("length", "stop")
    assert cut.usage.completion_tokens < full.usage.completion_tokens  # type: ignore[union-attr]


def test_prompts_may_be_token_ids_and_come_back(client: openai.OpenAI, small_language_model: TextGenerator) -> None:
    ids = small_language_model.tokenizer.encode(PROMPT)
    request: dict[str, Any] = {"model": "lm", "max_tokens": 5, "temperature": 0}
    (expected,) = texts(client.completions.create(prompt=PROMPT, **request))
    assert texts(client.completions.create(prompt=ids, **request)) == [expected]
    start = small_language_model.prompt_ids([])
    assert texts(client.completions.create(prompt=[ids, [*start, *ids]], **request)) == [expected, expected]
    for echo in (PROMPT, ids):
        assert texts(client.completions.create(prompt=echo, echo=True, **request)) == [PROMPT + expected]
        outputs, _ = streamed(client.completions.create(prompt=echo, echo=True, stream=True, **request))
        assert outputs[0]["text"] == PROMPT + expected


def test_translator_translates_the_prompt(client: openai.OpenAI, small_translator: Translator) -> None:
    found = client.completions.create(model="translator", prompt=[PROMPT, "a mouse. the sea."], n=2, seed=3)
    expected = small_translator.translate([PROMPT, "a mouse. the sea."], nbest=2)
    assert texts(found) == [text for both in expected for text in both]
    outputs, _ = streamed(client.completions.create(model="translator", prompt=PROMPT, stream=True, max_tokens=3))
    assert small_translator.translate(PROMPT).startswith(outputs[0]["text"])
    assert outputs[0]["finish_reason"] == "length"


def test_most_tokens_are_sixteen_by_default(client: openai.OpenAI) -> None:
    found = client.completions.create(model="lm", prompt=PROMPT, seed=1)
    assert found.usage.completion_tokens == 16  # type: ignore[union-attr]


def test_fields_of_no_meaning_are_ignored(client: openai.OpenAI) -> None:
    extra = {"user": "me", "best_of": 1, "presence_penalty": 0, "something_new": {"a": 1}, "suffix": None}
    assert client.completions.create(model="lm", prompt=PROMPT, extra_body=extra).choices


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("presence_penalty", 0.5),
        ("frequency_penalty", -1),
        ("logit_bias", {"5": 10}),
        ("suffix", "the end"),
        ("best_of", 4),
        ("temperature", -1),
        ("top_p", 0),
        ("max_tokens", "many"),
        ("n", 0),
        ("logprobs", 6),
        ("seed", 1 << 70),
        ("stop", ["x"] * 20),
        ("prompt", ""),
        ("prompt", [[1, 2], "text"]),
    ],
)
def test_what_cannot_be_honored_is_refused_by_name(client: openai.OpenAI, field: str, value: Any) -> None:
    body = {"prompt": PROMPT, field: value}
    if body["prompt"] == "":
        body["prompt"] = []
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model="lm", prompt="", extra_body=body)
    assert refused.value.param == field
    assert refused.value.type == "invalid_request_error"
    assert field in refused.value.body["message"]  # type: ignore[index]
