"""The routes of our own API answer like the pipelines, and refuse what they cannot answer."""

import base64
import io
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from regard.task.auto import open_model
from regard.task.json_records import class_records, guess_records, parse_record, tags_record
from tests.look.support import SENTENCES, sample_image
from tests.serve.api.small_service import LIMITS, check_refused, make_client, run_folder, served

TEXTS = [*SENTENCES, "a cat"]
MASKED = ["the [MASK] cat", "a [MASK] and a [MASK]"]


def post(path: str, **body: Any) -> dict[str, Any]:
    response = make_client().post(f"/v1/{path}", json=body)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def pipeline(name: str) -> Any:
    """The model as the command line opens it."""
    return open_model(run_folder(name))


def png(size: tuple[int, int] = (9, 12), seed: int = 0) -> bytes:
    buffer = io.BytesIO()
    sample_image(size, seed).save(buffer, "PNG")
    return buffer.getvalue()


def test_trees_are_those_of_the_parser() -> None:
    found = post("parse", text=[*TEXTS, " "])["parsed"]
    expected = [parse_record(each) for each in pipeline("parser").parse(TEXTS, details=True)]
    for one, other in zip(found, expected, strict=False):
        assert one["tree"] == other["tree"]
        assert one["words"] == other["words"]
        assert one["logprob"] == pytest.approx(other["logprob"], abs=2e-4)
    assert found[-1] == {"words": [], "tree": None, "tags": [], "score": None, "logprob": None}
    assert post("parse", text="a cat", tokenized=True, beam_size=1)["parsed"]["words"] == ["a", "cat"]


@pytest.mark.parametrize("options", [{}, {"top": 2, "tokens_per_mask": 2}, {"top": 3, "pieces": True}])
def test_guesses_are_those_of_fill(options: dict[str, Any]) -> None:
    found = post("fill", text=MASKED, **options)["filled"]
    expected = pipeline("filler").fill(MASKED, **{"top": 5} | options)
    assert [each["masks"] for each in found] == [guess_records(each) for each in expected]
    assert found[0]["text"] == MASKED[0].replace("[MASK]", expected[0][0][0].text)


def test_tags_are_those_of_the_tagger() -> None:
    found = post("tag", text=[*TEXTS, ""])["tagged"]
    assert found == [*map(tags_record, pipeline("tagger").tag(TEXTS)), tags_record(None)]
    assert post("tag", text="didn't it", tokenized=True)["tagged"]["words"] == ["didn't", "it"]
    assert post("tag", text="")["tagged"] == tags_record(None)


def test_classes_of_texts_are_those_of_the_classifier() -> None:
    found = post("classify", text=TEXTS, top=2)["classes"]
    assert found == [class_records(each) for each in pipeline("classifier").classify(TEXTS, top=2)]
    assert post("classify", text=TEXTS[0], top=2)["classes"] == found[0]


def test_images_are_classified_from_base64_data_urls_and_uploads() -> None:
    files = [png(), png((40, 30), seed=1)]
    images = [Image.open(io.BytesIO(file)) for file in files]
    expected = [class_records(each) for each in pipeline("images").classify(images)]
    encoded = [base64.b64encode(file).decode() for file in files]
    assert post("classify", image=encoded)["classes"] == expected
    assert post("classify", image=f"data:image/png;base64,{encoded[0]}")["classes"] == expected[0]
    upload = make_client().post("/v1/classify", files=[("image", file) for file in files], data={"top": "1"})
    assert upload.json()["classes"] == [each[:1] for each in expected], upload.text


@pytest.mark.parametrize("name", ["translator", "generator", "filler", "classifier"])
def test_vectors_are_those_of_the_pipeline(name: str) -> None:
    found = post("embed", text=TEXTS, model=name, words=True, layer=1, pooling="first")
    expected = pipeline(name).sentence_vectors(TEXTS, layer=1)
    torch.testing.assert_close(torch.tensor(found["embedding"]), expected)
    words = pipeline(name).contextual_vectors(TEXTS, layer=1, pooling="first")
    for one, other in zip(found["words"], words, strict=True):
        assert one["words"] == list(other.words)
        torch.testing.assert_close(torch.tensor(one["vectors"]), other.vectors)
    alone = post("embed", text=TEXTS[0], model=name, layer=1)
    assert "words" not in alone
    np.testing.assert_allclose(alone["embedding"], expected[0], atol=1e-6)


def test_scores_are_those_of_the_model() -> None:
    found = post("score", source=TEXTS, text=TEXTS[::-1], model="translator")["scored"]
    expected = pipeline("translator").score(TEXTS, TEXTS[::-1])
    for one, logprobs in zip(found, expected, strict=True):
        assert [token["logprob"] for token in one["tokens"]] == pytest.approx(logprobs, abs=1e-4)
        assert one["logprob"] == pytest.approx(sum(logprobs), abs=1e-3)
    one = post("score", text=TEXTS[0], model="generator")["scored"]
    assert one["logprob"] == pytest.approx(sum(pipeline("generator").score(TEXTS[0])), abs=1e-3)


BAD: dict[str, tuple[str, dict[str, Any], int, str]] = {
    "no text": ("parse", {"text": []}, 400, "text is empty"),
    "too many texts": ("tag", {"text": ["a"] * 9}, 413, "9 items"),
    "too long a text": ("embed", {"text": "a" * 501}, 413, "501 characters"),
    "too long in all": ("classify", {"text": ["a" * 500] * 3}, 413, "1,500 characters"),
    "no mask": ("fill", {"text": ["[MASK]", "a"]}, 400, "text[1] has no mask"),
    "too many passes": ("fill", {"text": "[MASK]" * 9, "tokens_per_mask": 32}, 413, "2,304 passes"),
    "no such layer": ("embed", {"text": "a", "layer": 99}, 400, "There is no layer 99"),
    "too many beams": ("parse", {"text": "a", "beam_size": 5}, 413, "beam_size is 5"),
    "text and image": ("classify", {"text": "a", "image": "a"}, 400, "either text or image"),
    "neither text nor image": ("classify", {}, 400, "either text or image"),
    "no image": ("classify", {"image": "aGFsbG8="}, 400, "cannot be read"),
    "no base64": ("classify", {"image": "?"}, 400, "not in base64"),
    "no data URL": ("classify", {"image": "data:image/png,abc"}, 400, "data: URL"),
    "damaged image": ("classify", {"image": base64.b64encode(png()[:-40]).decode()}, 400, "is damaged"),
    "an image for a model of texts": ("classify", {"image": "aaaa", "model": "tagger"}, 404, "cannot classify images"),
    "no source": ("score", {"text": "a", "model": "translator"}, 400, "a source for each text"),
    "another number of sources": ("score", {"text": ["a"], "source": ["a", "b"]}, 400, "2 sources and 1 texts"),
    "a source without translator": ("score", {"text": "a", "source": "b", "model": "generator"}, 400, "leave it out"),
    "unknown field": ("tag", {"text": "a", "txt": "b"}, 422, "txt"),
    "too many values": ("tag", {"text": [0] * 20_000}, 422, "more than 5,000 values"),
    "no object": ("tag", [], 422, "not a JSON object"),  # type: ignore[dict-item]
    "unknown model": ("tag", {"text": "a", "model": "b"}, 404, "There is no model 'b'"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_requests_are_refused_in_a_sentence(case: str) -> None:
    path, body, status, part = BAD[case]
    check_refused(make_client().post(f"/v1/{path}", json=body), status, part)


def test_images_with_too_many_pixels_are_refused_before_they_are_decoded() -> None:
    def encoded(width: int, height: int) -> str:
        buffer = io.BytesIO()
        Image.new("1", (width, height)).save(buffer, "PNG")
        return base64.b64encode(buffer.getvalue()).decode()

    def refuse(image: Any, part: str) -> None:
        check_refused(make_client().post("/v1/classify", json={"image": image}), 413, part)

    assert LIMITS.image_pixels < 6000 * 6000
    refuse(encoded(6000, 6000), "6,000 × 6,000 pixels")
    refuse([encoded(4500, 4500)] * 7, "141,750,000 pixels in all")
    bomb = bytearray(base64.b64decode(encoded(1, 1)))
    bomb[16:24] = (60_000).to_bytes(4, "big") * 2  # the width and height in the header, and its checksum
    bomb[29:33] = zlib.crc32(bomb[12:29]).to_bytes(4, "big")
    refuse(base64.b64encode(bytes(bomb)).decode(), "pixels")
    refuse("a" * 400_001, "too large")


def part(name: str, content: str) -> bytes:
    """A form with one part."""
    return f"--x\r\nContent-Disposition: form-data; {name}\r\n\r\n{content}\r\n--x--\r\n".encode()


@pytest.mark.parametrize(
    ("content", "kind", "expected"),
    [
        (b"", "multipart/form-data", "boundary"),
        (b"--x\r\nbroken", "multipart/form-data; boundary=x", "."),
        (b"\xff" * 30, "multipart/form-data; boundary=x", "."),
        (part('name="a"; filename="b"', "c"), "multipart/form-data; boundary=x", "in the field 'a'"),
        (part('name="top"', "many"), "multipart/form-data; boundary=x", "top"),
        (b"image=a", "application/x-www-form-urlencoded", "JSON"),
    ],
)
def test_damaged_forms_are_refused(content: bytes, kind: str, expected: str) -> None:
    response = make_client().post("/v1/classify", content=content, headers={"content-type": kind})
    assert 400 <= response.status_code < 423
    check_refused(response, response.status_code, expected)


def test_requests_that_wait_together_are_answered_as_alone() -> None:
    model, client = served("tagger"), make_client()
    texts = [f"{text} {number}" for number in range(3) for text in SENTENCES]
    expected = [post("tag", text=text) for text in texts]
    batches, release, deadline = model.batcher.batches, threading.Event(), time.monotonic() + 20
    model.passes.submit(lambda: release.wait(20))
    with ThreadPoolExecutor(len(texts)) as pool:
        found = pool.map(lambda text: client.post("/v1/tag", json={"text": text}).json(), texts)
        while model.passes.waiting < len(texts) and time.monotonic() < deadline:
            time.sleep(0.005)
        assert model.passes.waiting == len(texts)
        release.set()
        answers = list(found)
    assert model.batcher.batches == batches + 1
    for one, other in zip(answers, expected, strict=True):
        assert one["tagged"]["tags"] == other["tagged"]["tags"]
        assert one["tagged"]["probabilities"] == pytest.approx(other["tagged"]["probabilities"], abs=2e-4)
