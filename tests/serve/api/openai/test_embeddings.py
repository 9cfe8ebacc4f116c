"""`/v1/embeddings`, asked by OpenAI's own client."""

import base64

import numpy as np
import openai
import pytest
import torch

from regard.task.language_modeling.pipeline import TextGenerator

TEXTS = ["the old cat", "a mouse"]


def test_vectors_are_those_of_the_pipeline(client: openai.OpenAI, small_language_model: TextGenerator) -> None:
    expected = small_language_model.sentence_vectors(TEXTS)
    ids = small_language_model.tokenizer.encode_batch(TEXTS)
    for given in (TEXTS, ids):
        found = client.embeddings.create(model="lm", input=given)  # the client asks for base64
        assert [each.index for each in found.data] == [0, 1]
        assert torch.equal(torch.tensor([each.embedding for each in found.data]), expected)
        assert found.usage.prompt_tokens == found.usage.total_tokens == sum(map(len, ids))
    (single,) = client.embeddings.create(model="lm", input=ids[0], encoding_format="float").data
    assert single.embedding == pytest.approx(expected[0].tolist())


def test_base64_is_little_endian_float32(client: openai.OpenAI) -> None:
    answer = client.embeddings.with_raw_response.create(model="encoder", input="the old cat", encoding_format="base64")
    given = answer.http_response.json()["data"][0]["embedding"]
    vector = np.frombuffer(base64.b64decode(given), "<f4")
    assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-5)


def test_dimensions_must_be_those_of_the_model(client: openai.OpenAI) -> None:
    width = len(client.embeddings.create(model="encoder", input="a").data[0].embedding)
    assert client.embeddings.create(model="encoder", input="a", dimensions=width).data
    with pytest.raises(openai.BadRequestError) as refused:
        client.embeddings.create(model="encoder", input="a", dimensions=width - 1)
    assert refused.value.param == "dimensions"


def test_unknown_token_ids_are_refused(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="vocabulary"):
        client.embeddings.create(model="lm", input=[5, 99999])
