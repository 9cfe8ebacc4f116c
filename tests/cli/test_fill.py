"""`regard fill`."""

import json
from pathlib import Path

import pytest

from regard.task.masked_lm.pipeline import FillMask
from tests.cli.refusal import assert_refused
from tests.task.encoders import save_random_encoder, tokenizer
from tests.task.small import command, save_random_model, write_lines

TEXT = "The [MASK] ate the mouse."


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    text = tokenizer("bpe", ["The cat ate the mouse.", "the old cat sat on the mat"] * 4, 310)
    return save_random_encoder(tmp_path_factory.mktemp("models") / "filler", text, {"kind": "masked_lm"})


@pytest.fixture(scope="module")
def filler(model: Path) -> FillMask:
    return FillMask.load(model)


def test_text_is_printed_with_its_mask_filled(model: Path, filler: FillMask) -> None:
    ((best, *_),) = filler.fill(TEXT, top=5)
    done = command("fill", model, TEXT)
    assert (done.code, done.out, done.err) == (0, f"The {best.text} ate the mouse.\n", "")


def test_standard_input_keeps_empty_lines(model: Path) -> None:
    done = command("fill", model, stdin=f"{TEXT}\n\n[MASK] [MASK]\n".encode())
    first, second, third = done.out.splitlines()
    assert (f"{first}\n", second) == (command("fill", model, TEXT).out, "")
    assert f"{third}\n" == command("fill", model, "[MASK] [MASK]").out


def test_top_prints_words_with_probabilities_for_each_mask(model: Path, filler: FillMask) -> None:
    text = "The [MASK] ate [MASK] mouse."
    gaps = [", ".join(f"{one.text} {one.probability:.4f}" for one in gap) for gap in filler.fill(text, top=3)]
    assert command("fill", model, text, "--top", 3).out == "\t".join(gaps) + "\n"


def test_pieces_are_tokens_of_the_vocabulary(model: Path, filler: FillMask) -> None:
    found = command("fill", model, TEXT, "--pieces").out.removesuffix("\n").split(", ")
    (expected,) = filler.fill(TEXT, top=5, pieces=True)
    assert found == [f"{one.text} {one.probability:.4f}" for one in expected]
    assert all(filler.tokenizer.tokenizer.token_to_id(one.text) is not None for one in expected)


def test_json(model: Path, filler: FillMask) -> None:
    done = command("fill", model, TEXT, "--json", "--top", 2, "--tokens-per-mask", 2)
    (gap,) = filler.fill(TEXT, top=2, tokens_per_mask=2)
    guesses = [{"text": one.text, "probability": round(one.probability, 6)} for one in gap]
    assert json.loads(done.out) == {"text": TEXT, "masks": [guesses]}
    assert len(json.loads(command("fill", model, TEXT, "--json").out)["masks"][0]) == 5


def test_input_and_output_files(model: Path, tmp_path: Path) -> None:
    file = write_lines(tmp_path / "in.txt", [TEXT, TEXT])
    done = command("fill", model, "--file", file, "--output", tmp_path / "out.txt")
    assert (done.code, done.out) == (0, "")
    assert (tmp_path / "out.txt").read_text() == 2 * command("fill", model, TEXT).out


def test_text_without_a_mask_is_refused(model: Path) -> None:
    assert_refused(command("fill", model, "The cat"), "found no [MASK] in 'The cat'")
    assert_refused(command("fill", model, stdin=f"{TEXT}\nThe cat\n".encode()), "Line 2: found no [MASK]")


def test_other_models_are_refused(tmp_path: Path) -> None:
    assert_refused(command("fill", save_random_model(tmp_path / "run"), TEXT), "not a text encoder")
    assert_refused(command("fill", tmp_path / "nowhere", TEXT), "nowhere")


def test_text_and_file_together_are_refused(model: Path, tmp_path: Path) -> None:
    assert_refused(command("fill", model, TEXT, "--file", tmp_path / "in.txt"), "give one of the two")
