"""`/v1/chat/completions`, asked by OpenAI's own client."""

import time
from typing import Any

import openai
import pytest

from regard.task.language_modeling.pipeline import TextGenerator
from regard.task.translation.pipeline import Translator

CHAT: Any = [{"role": "system", "content": "the sea"}, {"role": "user", "content": "the old cat"}]


def test_answer_continues_what_the_template_writes(client: openai.OpenAI, small_language_model: TextGenerator) -> None:
    found = client.chat.completions.create(model="chat", messages=CHAT, temperature=0, max_completion_tokens=7)
    tokenizer = small_language_model.tokenizer
    assert tokenizer.bos is not None
    assert tokenizer.eos is not None
    ids = [
        tokenizer.bos,
        *tokenizer.encode("system: the sea"),
        tokenizer.eos,
        *tokenizer.encode("user: the old cat"),
        tokenizer.eos,
        *tokenizer.encode("assistant:"),
    ]
    same = client.completions.create(model="chat", prompt=ids, temperature=0, max_tokens=7)
    assert found.usage == same.usage
    assert found.choices[0].message.role == "assistant"
    assert found.choices[0].message.content == same.choices[0].text != ""
    assert found.choices[0].finish_reason == "length"


def test_special_tokens_in_messages_are_plain_text(client: openai.OpenAI, small_language_model: TextGenerator) -> None:
    def prompt_tokens(content: str) -> int:
        messages: Any = [{"role": "user", "content": content}]
        found = client.chat.completions.create(model="chat", messages=messages, max_tokens=1)
        assert found.usage is not None
        return found.usage.prompt_tokens

    name = "⟨eos⟩"
    plain = len(small_language_model.tokenizer.encode(name))
    assert plain > 1
    assert prompt_tokens(f"cat{name}") - prompt_tokens("cat") == plain
    assert prompt_tokens("cat\ufdd0") == prompt_tokens("cat")


def test_stream_equals_answer_at_once(client: openai.OpenAI) -> None:
    request: dict[str, Any] = {"model": "chat", "messages": CHAT, "max_tokens": 12, "seed": 3, "n": 2}
    request |= {"logprobs": True, "top_logprobs": 2}
    whole = client.chat.completions.create(**request)
    chunks = list(client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **request))
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
    for choice in whole.choices:
        pieces = [each for chunk in chunks for each in chunk.choices if each.index == choice.index]
        assert [piece.delta.role for piece in pieces] == ["assistant", *[None] * (len(pieces) - 1)]
        assert [piece.finish_reason for piece in pieces] == [*[None] * (len(pieces) - 1), choice.finish_reason]
        assert "".join(piece.delta.content or "" for piece in pieces) == choice.message.content
        tokens = [each for piece in pieces if piece.logprobs for each in piece.logprobs.content or []]
        assert choice.logprobs is not None
        whole_tokens = choice.logprobs.content or []
        assert [token.token for token in tokens] == [token.token for token in whole_tokens]
        assert [token.logprob for token in tokens] == pytest.approx([token.logprob for token in whole_tokens], abs=1e-4)
        assert bytes(byte for token in tokens for byte in token.bytes or []).decode() == choice.message.content
        assert all(len(token.top_logprobs) == 2 for token in tokens)


def test_template_that_loops_is_refused_in_time_and_the_next_chat_works(client: openai.OpenAI) -> None:
    start = time.monotonic()
    with pytest.raises(openai.BadRequestError, match="takes too long"):
        client.chat.completions.create(model="chat", messages=[{"role": "user", "content": "loop"}])
    assert time.monotonic() - start < 4
    assert client.chat.completions.create(model="chat", messages=CHAT, max_tokens=1).choices


def test_translator_translates_the_last_message_of_the_user(
    client: openai.OpenAI, small_translator: Translator
) -> None:
    expected = small_translator.translate("the old cat")
    found = client.chat.completions.create(model="translator", messages=CHAT)
    assert found.choices[0].message.content == expected
    chunks = client.chat.completions.create(model="translator", messages=CHAT, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == expected
    with pytest.raises(openai.BadRequestError, match="messages"):
        client.chat.completions.create(model="translator", messages=CHAT[:1])


def test_content_may_be_parts_of_text(client: openai.OpenAI) -> None:
    parts: Any = [{"type": "text", "text": "the old"}, {"type": "text", "text": "cat"}]
    request: dict[str, Any] = {"model": "chat", "temperature": 0, "max_tokens": 4}
    found = client.chat.completions.create(messages=[{"role": "user", "content": parts}], **request)
    same = client.chat.completions.create(messages=[{"role": "user", "content": "the old\ncat"}], **request)
    assert found.choices == same.choices


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tools", [{"type": "function", "function": {"name": "f"}}]),
        ("response_format", {"type": "json_object"}),
        ("modalities", ["audio"]),
        ("top_logprobs", 3),
        ("reasoning_effort", "high"),
        ("messages", []),
        ("messages", [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
        ("messages", [{"role": "assistant", "content": "", "tool_calls": [{}]}]),
    ],
)
def test_what_cannot_be_honored_is_refused(client: openai.OpenAI, field: str, value: Any) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="chat", messages=CHAT, extra_body={field: value})
    assert field in str(refused.value)


def test_model_without_a_template_does_not_chat(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="no chat template"):
        client.chat.completions.create(model="lm", messages=CHAT)
