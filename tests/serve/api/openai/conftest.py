"""A server with a small model of each kind, and OpenAI's own client for it."""

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
import torch

from regard.task.pipeline import Pipeline
from tests.look.support import autoregressive_model, encoder_model
from tests.model.small_models import language_model
from tests.serve.api.support import ServiceUrl, save_pipeline, serving_models

TEMPLATE = """{% if messages[0].content == 'loop' %}
{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}
{% endif %}
{{ bos_token }}{% for message in messages %}{{ message.role }}: {{ message.content }}{{ eos_token }}{% endfor %}
assistant:"""


@pytest.fixture(scope="session")
def small_language_model() -> Pipeline:
    return autoregressive_model(language_model(), torch.float32).pipeline  # type: ignore[attr-defined]


@pytest.fixture(scope="session")
def small_translator() -> Pipeline:
    return autoregressive_model(dtype=torch.float32).pipeline  # type: ignore[attr-defined]


@pytest.fixture(scope="session")
def url(
    small_language_model: Pipeline, small_translator: Pipeline, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServiceUrl]:
    chat: Path = save_pipeline(
        tmp_path_factory.mktemp("models") / "chat",
        small_language_model,
        chat_template=TEMPLATE,
        origin={"chat_tokens": {"bos_token": "⟨bos⟩", "eos_token": "⟨eos⟩"}},
    )
    encoder = encoder_model({"kind": "masked_lm"}, torch.float32).pipeline  # type: ignore[attr-defined]
    models = {"lm": small_language_model, "chat": chat, "translator": small_translator, "encoder": encoder}
    with serving_models(models) as url:
        yield url


@pytest.fixture(scope="session")
def client(url: ServiceUrl) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client
