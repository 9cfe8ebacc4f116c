"""LibreTranslate's protocol, as its clients speak it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
from deep_translator import LibreTranslator
from deep_translator.exceptions import AuthorizationException
from libretranslatepy import LibreTranslateAPI
from starlette.testclient import TestClient

import regard
from regard.serve.api.service import Service
from tests.serve.api.translation_clients_support import HOME, listening, make_client, translation_service

TEXTS = ["the old cat ate a mouse. The old man sat by the sea!", "red sun, big sea"]
KEY = "a key"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("served")


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[Service]:
    with translation_service(folder) as service:
        yield service


@pytest.fixture(scope="module")
def client(service: Service) -> TestClient:
    return make_client(service)


@pytest.fixture(scope="module")
def expected(service: Service, folder: Path) -> list[str]:
    """What `regard translate` prints."""
    return regard.load(folder / "model").translate(TEXTS)  # type: ignore[no-any-return]


def ask(client: TestClient, **fields: Any) -> Any:
    response = client.post("/translate", json={"source": "en", "target": "tr", **fields})
    assert response.status_code == 200, response.text
    return response.json()


def test_real_clients_translate_and_list_languages(service: Service, expected: list[str]) -> None:
    with listening(service) as url:
        api = LibreTranslateAPI(url)
        assert api.translate(TEXTS[0], "en", "tr") == expected[0]
        assert api.languages()[0] == {"code": "en", "name": "English", "targets": ["en", "de", "tr"]}
        assert api.detect("Where is the station?")[0]["language"] == "en"
        translator = LibreTranslator(source="en", target="tr", custom_url=url, api_key="any")
        assert translator.translate_batch(TEXTS) == expected


def test_json_form_and_query_give_the_same_answer(client: TestClient, expected: list[str]) -> None:
    fields = {"q": TEXTS[0], "source": "EN", "target": "tr", "format": "text", "api_key": ""}
    for path in ("/translate", "//translate"):
        for arguments in ({"json": fields}, {"data": fields}, {"params": fields}):
            assert client.post(f"{HOME}{path}", **arguments).json() == {"translatedText": expected[0]}  # type: ignore[arg-type]


def test_list_has_a_list_of_answers(client: TestClient, expected: list[str]) -> None:
    answer = ask(client, q=TEXTS, alternatives=2, source="auto")
    assert answer["translatedText"] == expected
    assert [each["language"] for each in answer["detectedLanguage"]] == ["en", "en"]
    assert [len(each) for each in answer["alternatives"]] == [2, 2]


def test_alternatives_are_the_next_best(client: TestClient, folder: Path) -> None:
    best = regard.load(folder / "model").translate(TEXTS[0], nbest=3)
    answer = ask(client, q=TEXTS[0], alternatives=2)
    assert [answer["translatedText"], *answer["alternatives"]] == best


def test_language_is_detected_only_if_asked_for(client: TestClient) -> None:
    detected = ask(client, q="This is the house where I live.", source="auto")["detectedLanguage"]
    assert detected["language"] == "en"
    assert 50 < detected["confidence"] <= 100
    assert "detectedLanguage" not in ask(client, q=TEXTS[0])
    turkish = "Bugün hava çok güzel, değil mi?"
    assert ask(client, q=turkish, source="auto")["translatedText"] == turkish
    assert client.post("/detect", data={"q": turkish}).json()[0]["language"] == "tr"


def test_pair_without_a_model_goes_through_a_third_language(
    client: TestClient, expected: list[str], folder: Path
) -> None:
    again = regard.load(folder / "model").translate(expected)
    assert ask(client, q=TEXTS, target="de")["translatedText"] == again
    assert client.get("/languages").json()[1] == {"code": "tr", "name": "Turkish", "targets": ["tr", "de"]}


def test_html_keeps_its_tags(client: TestClient) -> None:
    page = '<p class="x">the <b>old</b> cat</p><script>if (a < b) x()</script>'
    answer = ask(client, q=page, format="html", alternatives=1)
    for text in (answer["translatedText"], *answer["alternatives"]):
        assert text.startswith('<p class="x">')
        assert text.endswith("</p><script>if (a < b) x()</script>")
        assert text.count("<b>") == text.count("</b>") == 1


@pytest.mark.parametrize(
    ("fields", "status", "part"),
    [
        ({"source": "en", "target": "tr"}, 400, "missing q"),
        ({"q": "a", "target": "tr"}, 400, "missing source"),
        ({"q": "a", "source": "en", "target": "xx"}, 400, "'xx' is not supported"),
        ({"q": "a", "source": "de", "target": "en"}, 400, "does not translate from 'de'"),
        ({"q": 3, "source": "en", "target": "tr"}, 400, "q"),
        ({"q": "a", "source": "en", "target": "tr", "format": "pdf"}, 400, "format"),
        ({"q": "a", "source": "en", "target": "tr", "alternatives": 9}, 413, "at most 4"),
        ({"q": "a" * 501, "source": "en", "target": "tr"}, 413, "characters"),
        ({"q": ["a"] * 21, "source": "en", "target": "tr"}, 413, "items"),
    ],
)
def test_bad_request_has_a_sentence(client: TestClient, fields: dict[str, Any], status: int, part: str) -> None:
    response = client.post("/translate", json=fields)
    assert response.status_code == status, response.text
    assert list(response.json()) == ["error"]
    assert part in response.json()["error"]


@pytest.mark.parametrize(
    "body", [b"[1]", b"{", b"[" * 5000, b'{"q": ["a", 1], "source": "en", "target": "tr"}', b"\xff"]
)
def test_bad_body_has_a_sentence(client: TestClient, body: bytes) -> None:
    response = client.post("/translate", content=body, headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert response.json()["error"].endswith(".")


def test_files_are_not_translated(client: TestClient) -> None:
    assert client.post("/translate_file", files={"file": b"text"}).status_code == 404
    assert "error" in client.post("/translate_file").json()


def test_settings(client: TestClient) -> None:
    settings = client.get("/frontend/settings").json()
    assert settings["charLimit"] == 500
    assert settings["language"]["source"] == {"code": "en", "name": "English"}


def test_keys(tmp_path: Path) -> None:
    with translation_service(tmp_path, ["en-tr"], KEY) as service, listening(service) as url:
        assert LibreTranslateAPI(url, KEY).translate("a cat", "en", "tr")
        assert LibreTranslateAPI(url, KEY).languages()
        with pytest.raises(HTTPError) as refused:
            LibreTranslateAPI(url).translate("a cat", "en", "tr")
        assert refused.value.code == 400
        assert "needs an API key" in json.load(refused.value)["error"]
        for refusing in (LibreTranslateAPI(url, "wrong").detect, LibreTranslateAPI(url, "wrong").translate):
            with pytest.raises(HTTPError) as refused:
                refusing("a cat")
            assert refused.value.code == 403
        with pytest.raises(AuthorizationException):
            LibreTranslator(source="en", target="tr", custom_url=url, api_key="wrong").translate("a cat")
        client = make_client(service)
        fields = {"q": "a cat", "source": "en", "target": "tr"}
        assert client.post("/translate", json=fields, headers={"authorization": f"Bearer {KEY}"}).status_code == 200
        assert client.get("/frontend/settings").json()["keyRequired"] is True


def test_language_of_a_page_is_that_of_its_text(client: TestClient) -> None:
    page = "<p class='the house where I live'>Bugün <b title='where'>hava</b> çok güzel</p><script>for</script>"
    assert ask(client, q=page, source="auto", format="html")["detectedLanguage"]["language"] == "tr"
