"""DeepL's protocol, as its client speaks it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deepl
import pytest
from starlette.testclient import TestClient

import regard
from regard.serve.api.service import Service
from tests.serve.api.translation_clients_support import listening, make_client, translation_service

TEXTS = ["the old cat ate a mouse. The old man sat by the sea!", "red sun, big sea"]
KEY = "a key"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("served")


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[Service]:
    with translation_service(folder, ["en-tr", "tr-en"], KEY) as service:
        yield service


@pytest.fixture(scope="module")
def client(service: Service) -> TestClient:
    client = make_client(service)
    client.headers["authorization"] = f"DeepL-Auth-Key {KEY}"
    return client


@pytest.fixture(scope="module")
def translator(service: Service) -> Iterator[deepl.DeepLClient]:
    with listening(service) as url:
        yield deepl.DeepLClient(KEY, server_url=url)


def test_client_translates(translator: deepl.DeepLClient, folder: Path) -> None:
    expected = regard.load(folder / "model").translate(TEXTS)
    found = translator.translate_text(TEXTS, source_lang="EN", target_lang="TR")
    assert isinstance(found, list)
    assert [each.text for each in found] == expected
    assert [each.detected_source_lang for each in found] == ["EN", "EN"]
    assert [each.billed_characters for each in found] == list(map(len, TEXTS))
    single = translator.translate_text(
        TEXTS[1], target_lang="TR", formality="prefer_more", model_type="quality_optimized"
    )
    assert isinstance(single, deepl.TextResult)
    assert (single.text, single.model_type_used) == (expected[1], "quality_optimized")


def test_client_lists_languages(translator: deepl.DeepLClient) -> None:
    assert [str(each) for each in translator.get_source_languages()] == ["EN", "TR"]
    targets = translator.get_target_languages()
    assert [each.code for each in targets] == ["EN-GB", "EN-US", "TR"]
    assert not targets[2].supports_formality
    assert translator.translate_text("bir kedi", source_lang="TR", target_lang="EN-US").text  # type: ignore[union-attr]


def test_client_counts_characters(translator: deepl.DeepLClient) -> None:
    before = translator.get_usage().character.count
    translator.translate_text("a cat", source_lang="EN", target_lang="TR")
    usage = translator.get_usage()
    assert usage.character.count == before + len("a cat")  # type: ignore[operator]
    assert not usage.any_limit_reached


@pytest.mark.parametrize("handling", ["html", "xml"])
def test_tags_are_kept(translator: deepl.DeepLClient, handling: str) -> None:
    page = '<a href="x">the old</a> cat <x>sat by <b>the sea</b></x>'
    found = translator.translate_text(
        page, source_lang="EN", target_lang="TR", tag_handling=handling, ignore_tags=["x"]
    )
    assert "<x>sat by <b>the sea</b></x>" in found.text  # type: ignore[union-attr]
    assert found.text.count('<a href="x">') == found.text.count("</a>") == 1  # type: ignore[union-attr]


def test_sentences_are_split_as_asked(client: TestClient, folder: Path) -> None:
    model = regard.load(folder / "model")

    def ask(text: str, **fields: Any) -> str:
        fields = {"text": [text], "source_lang": "en", "target_lang": "tr", **fields}
        return client.post("/v2/translate", json=fields).json()["translations"][0]["text"]  # type: ignore[no-any-return]

    text = "the cat. The dog\nand the sea"
    assert ask(text) == ask(text, split_sentences="1") == model.translate(text)
    assert ask(text, split_sentences="0") == ask(text, split_sentences=False) == model.translate(text, split=False)
    assert ask(text, split_sentences="nonewlines") == model.translate("the cat. The dog and the sea")


def test_form_is_understood(client: TestClient) -> None:
    form = {"text": TEXTS, "source_lang": "EN", "target_lang": "TR"}
    assert client.post("/v2/translate", data=form).json() == client.post("/v2/translate", json=form).json()
    assert (
        client.post("/v2/languages", data={"type": "target"}).json() == client.get("/v2/languages?type=target").json()
    )


def test_wrong_key(service: Service) -> None:
    with listening(service) as url, pytest.raises(deepl.AuthorizationException):
        deepl.DeepLClient("wrong", server_url=url).get_usage()


@pytest.mark.parametrize(
    ("fields", "status", "part"),
    [
        ({}, 400, "text"),
        ({"target_lang": "XX"}, 400, "'XX' is not supported"),
        ({"formality": "more"}, 400, "formality"),
        ({"glossary_id": "1"}, 400, "glossary_id"),
        ({"split_sentences": "2"}, 400, "split_sentences"),
        ({"tag_handling": "pdf"}, 400, "tag_handling"),
        ({"text": ["a" * 501]}, 413, "characters"),
    ],
)
def test_bad_request_has_a_sentence(client: TestClient, fields: dict[str, Any], status: int, part: str) -> None:
    body = {"text": ["a"], "target_lang": "TR", **fields} if fields else {"target_lang": "TR"}
    response = client.post("/v2/translate", json=body)
    assert response.status_code == status, response.text
    assert list(response.json()) == ["message"]
    assert part in response.json()["message"]


def test_unknown_address_has_a_message(client: TestClient) -> None:
    assert list(client.get("/v2/glossaries").json()) == ["message"]


def test_description_has_requests_answers_and_errors(client: TestClient) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    assert set(paths["/v2/translate"]["post"]["responses"]) >= {"200", "400", "403", "413", "429"}
    content = paths["/v2/translate"]["post"]["requestBody"]["content"]
    assert "target_lang" in content["application/json"]["schema"]["properties"]
    assert set(content) == {"application/json", "application/x-www-form-urlencoded"}
    assert {"/detect", "/languages", "/v2/languages", "/v2/usage"} <= set(paths)
    assert "//translate" not in paths
