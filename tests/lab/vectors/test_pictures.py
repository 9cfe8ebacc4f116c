"""Pictures of vectors: they are well-formed, labels do not overlap, and masked cells are empty."""

import json
import re
from xml.etree import ElementTree

import numpy as np
import pytest

from regard.lab.vectors import maps
from regard.lab.vectors.bars import bars_picture
from regard.lab.vectors.maps import VectorMap, map_html, map_svg
from regard.lab.vectors.matrix import attention_matrix, matrix_picture
from regard.model.before.word_vectors.keyed_vectors import KeyedVectors

SVG = "{http://www.w3.org/2000/svg}"
AWKWARD = ["<b>&", '"quoted"', "</script>", "語", "plain"]


@pytest.fixture
def keyed() -> KeyedVectors:
    return KeyedVectors(AWKWARD, np.random.default_rng(1).standard_normal((5, 8), dtype=np.float32))


def texts(picture: str) -> list[str]:
    return [one.text or "" for one in ElementTree.fromstring(picture).iter(f"{SVG}text")]


def test_bars_are_the_numbers_of_the_vector(keyed: KeyedVectors) -> None:
    picture = bars_picture(keyed, AWKWARD[:2])
    tips = re.findall(r"dimension (\d+): (-?[\d.]+)", picture)
    np.testing.assert_allclose([float(value) for _, value in tips], keyed.vectors[:2].ravel(), atol=1e-4)
    assert {"<b>&", "most similar", keyed.near("<b>&", 1)[0].word} <= set(texts(picture))


def test_attention_matrix_is_a_softmax_over_what_came_before(keyed: KeyedVectors) -> None:
    cosines = keyed.similarities(AWKWARD)
    weights = attention_matrix(cosines, softmax=True, causal=True)
    np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=1e-6)
    assert (np.triu(weights, 1) == 0).all()
    first = np.exp(cosines[1, :2])
    np.testing.assert_allclose(weights[1, :2], first / first.sum(), rtol=1e-6)
    plain = attention_matrix(cosines, softmax=True, causal=False)
    np.testing.assert_allclose(plain, np.exp(cosines) / np.exp(cosines).sum(axis=1, keepdims=True), rtol=1e-6)
    assert np.isnan(attention_matrix(cosines, softmax=False, causal=True)[0, 1])


@pytest.mark.parametrize("count", [5, 40])
def test_matrix_has_a_cell_for_each_pair(keyed: KeyedVectors, count: int) -> None:
    words = (AWKWARD * 8)[:count]
    picture = matrix_picture(words, keyed.similarities(words), "Cosine similarity")
    assert texts(picture).count("1.00") == (count if count == 5 else 0)
    assert texts(picture).count("plain") == 2 * words.count("plain")
    causal = matrix_picture(words, keyed.similarities(words), "Causal", causal=True)
    assert causal.count("<title>masked</title>") == count * (count - 1) // 2


def test_labels_of_a_map_do_not_overlap() -> None:
    points = np.random.default_rng(1).standard_normal((400, 2))
    drawn = VectorMap.of("Map", "note", [f"word{number}" for number in range(400)], points)
    labels = [one for one in ElementTree.fromstring(map_svg(drawn)).iter(f"{SVG}text") if one.text.startswith("word")]
    assert 50 < len(labels) < 400
    boxes = []
    for label in labels:
        width = maps.LETTER * 0.95 * len(label.text)
        share = {"start": 0.0, "middle": 0.5, "end": 1.0}[label.get("text-anchor")]
        left, y = float(label.get("x")) - share * width, float(label.get("y"))
        boxes.append((left, y - 11, left + width, y + 4))
    clashes = [(a, b) for i, a in enumerate(boxes) for b in boxes[:i] if maps._overlap(a, b)]
    assert not clashes


def test_page_of_a_map_has_all_points_and_runs_nothing_of_their_labels() -> None:
    drawn = VectorMap.of("A <map>", "note", AWKWARD, np.eye(5)[:, :2], ["g", "h", "g", "</script>", "g"])
    page = map_html(drawn)
    data = json.loads(page.partition('type="application/json">')[2].partition("</script>")[0])
    assert [point[0] for point in data["points"]] == AWKWARD
    assert data["groups"] == ["g", "h", "</script>"]
    assert page.count("</script>") == 2
    assert "<title>A &lt;map&gt;</title>" in page
    assert "{{" not in page
    assert "http://" not in page.replace("http://www.w3.org", "")


def test_map_of_one_point_is_drawn() -> None:
    assert "only" in texts(map_svg(VectorMap.of("One", "", ["only"], np.zeros((1, 2)))))
    assert "only" not in texts(map_svg(VectorMap.of("One", "", ["only"], np.zeros((1, 2))).without_labels()))
