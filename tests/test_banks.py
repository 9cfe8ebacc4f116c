"""The banks: one static vector for both senses of *bank*, and other vectors in other sentences (examples/banks.py)."""

import json
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tomli_w
import torch
from examples.banks import MONEY, RIVER, VERB_AND_NOUN, main, similarities

import regard
from regard.model.before.word_vectors.keyed_vectors import KeyedVectors
from tests.task.contextual_vectors.test_vectors import StaticVectors
from tests.task.small import quick_runs, write_lines

STEPS = 160
RIVER_WORDS, MONEY_WORDS = ("water", "boat", "fish", "mud"), ("cash", "loan", "coin", "vault")


def about(subjects: tuple[str, ...], count: int, seed: int) -> list[str]:
    """Sentences in which the words beside *bank* depend on each other: each direction has to carry the sense on."""
    rng = random.Random(seed)
    return [f"the {first} bank {second}" for first, second in (rng.sample(subjects, 2) for _ in range(count))]


@pytest.fixture(scope="module")
def bilstm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A bidirectional language model of such sentences."""
    base = tmp_path_factory.mktemp("banks")
    lines = about(RIVER_WORDS, 200, 1) + about(MONEY_WORDS, 200, 2)
    random.Random(3).shuffle(lines)
    write_lines(base / "text.txt", [*lines, *RIVER, *MONEY, VERB_AND_NOUN])
    recipe = {
        "description": "A small recipe to test with.",
        "task": "language-modeling",
        "data": {"train": [{"path": "text.txt", "unit": "line"}], "context_length": 16},
        "tokenizer": {"kind": "word"},
        "model": {"kind": "bidirectional-lm", "width": 32, "layers": 1, "dropout": 0.0},
        "train": {"steps": STEPS, "batch_tokens": 512, "log_every": 10, "validate_every": STEPS, "save_every": STEPS}
        | {"schedule": {"kind": "constant", "lr": 0.02, "warmup_steps": 0}, "loss": {"label_smoothing": 0.0}},
    }
    (base / "small.toml").write_text(tomli_w.dumps(recipe), encoding="utf-8")
    with quick_runs(tmp_path_factory.mktemp("cache")):
        regard.train(base / "small.toml", out=base / "run")
        yield base / "run"


def test_training_learns_both_directions(bilstm: Path) -> None:
    lines = [json.loads(line) for line in (bilstm / "metrics.jsonl").read_text().splitlines()]
    losses = [line["nll"] for line in lines if "tokens_per_second" in line]
    assert losses[-1] < 0.5 * losses[0]
    reader = regard.load(bilstm).context_model
    ids = torch.tensor([reader.tokenizer.encode("the water bank fish the")])
    with torch.no_grad():
        logits_of_both = reader.model(ids[:, :-1], following=ids[:, 1:])
    ahead, back = (logits.softmax(dim=-1)[0] for logits in logits_of_both.chunk(2))
    river, money = ([reader.tokenizer.encode(f" {word}")[0] for word in words] for words in (RIVER_WORDS, MONEY_WORDS))
    for found in (ahead[2], back[1]):  # the word after "the water bank", and the word before "bank fish the"
        assert float(found[river].sum()) > 3 * float(found[money].sum())


def test_contextual_vectors_separate_senses_and_static_ones_do_not(bilstm: Path) -> None:
    first, second = about(RIVER_WORDS, 6, 11), about(MONEY_WORDS, 6, 12)
    static, last = similarities(regard.load(bilstm), "bank", first, second)
    assert [static.river, static.money, static.across] == pytest.approx([1, 1, 1])
    assert 1 - last.across > 2 * (1 - last.river)
    assert 1 - last.across > 2 * (1 - last.money)
    keyed = KeyedVectors(["bank", "river"], np.eye(2, dtype=np.float32))
    (only,) = similarities(StaticVectors(keyed))
    assert [only.river, only.money, only.across, only.verb_and_noun] == pytest.approx([1] * 4)


def test_verb_and_noun_have_other_vectors_in_the_same_sentence(bilstm: Path) -> None:
    static, last = similarities(regard.load(bilstm))
    assert static.verb_and_noun == pytest.approx(1)
    assert last.verb_and_noun is not None
    assert last.verb_and_noun < 0.999


def test_example_prints_every_layer(
    bilstm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["banks.py", str(bilstm), "--json", str(tmp_path / "banks.json")])
    main()
    name, _, *rows = capsys.readouterr().out.splitlines()
    assert name == str(bilstm)
    assert [row.split()[0] for row in rows] == ["0", "1"]
    (written,) = json.loads((tmp_path / "banks.json").read_text())
    assert [each["layer"] for each in written["layers"]] == [0, 1]
    monkeypatch.setattr("sys.argv", ["banks.py", str(tmp_path / "nothing")])
    with pytest.raises(SystemExit, match=r"banks\.py: "):
        main()
