"""What a command reads: pipes work or are refused at once, and no input takes unbounded time or memory."""

import contextlib
import gzip
import lzma
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import pytest
import zstandard

from regard import UserError
from regard.data.images.arrays import read_idx
from regard.data.text.lines import read_lines
from regard.data.tokenizers import training
from regard.data.tokenizers.training import TokenizerConfig, train_tokenizer
from regard.task.recipe_io import read_recipe
from regard.task.run import train
from tests.cli.refusal import assert_refused
from tests.task import small_images
from tests.task.encoders import save_random_encoder, tokenizer
from tests.task.language_modeling import test_task as language_modeling
from tests.task.language_modeling.test_pipeline import save_random_writer
from tests.task.masked_lm import test_task as masked_lm
from tests.task.parsing import test_task as parsing
from tests.task.small import (
    command,
    pairs,
    quick_runs,
    save_random_model,
    write_aligned,
    write_recipe_file,
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_model(tmp_path_factory.mktemp("models") / "small")


@contextlib.contextmanager
def fifo(path: Path, content: bytes) -> Iterator[Path]:
    """A FIFO that sends some content, once."""
    os.mkfifo(path)

    def send() -> None:
        with contextlib.suppress(BrokenPipeError):
            path.write_bytes(content)

    writer = threading.Thread(target=send, daemon=True)
    writer.start()
    yield path
    reading = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # if nobody has read it, the writer is still waiting
    writer.join(20)
    os.close(reading)


# Pipes


def test_fifo_is_read_like_a_file(model: Path, tmp_path: Path) -> None:
    with fifo(tmp_path / "fifo", b"red cat\nsun\n") as given:
        done = command("translate", model, "--file", given)
    assert (done.code, done.out) == (0, command("translate", model, "red cat", "sun").out)


def test_fifos_are_scored_like_files(model: Path, tmp_path: Path) -> None:
    source, target = write_aligned(tmp_path, pairs(5))
    expected = command("score", target, "--source", source, "--reference", target)
    with (
        fifo(tmp_path / "1", source.read_bytes()) as sources,
        fifo(tmp_path / "2", target.read_bytes()) as references,
        fifo(tmp_path / "3", target.read_bytes()) as outputs,
    ):
        done = command("score", outputs, "--source", sources, "--reference", references)
    assert (done.code, "BLEU 100.00" in done.out) == (0, True), done.err
    assert done.out == expected.out.replace(str(target), str(outputs))


def test_process_substitution(model: Path) -> None:
    """The shell passes the reading end of a pipe as /dev/fd/N."""
    reading, writing = os.pipe()
    os.write(writing, b"red cat\nsun\n")
    os.close(writing)
    done = command("translate", model, "--file", f"/dev/fd/{reading}")
    os.close(reading)
    assert (done.code, done.out) == (0, command("translate", model, "red cat", "sun").out)


def test_process_substitution_is_refused_for_several_processes() -> None:
    reading, writing = os.pipe()
    try:
        done = command("translate", "no/such/model", "--file", f"/dev/fd/{reading}", "--processes", 2)
        assert_refused(done, f"/dev/fd/{reading}", "--processes")
    finally:
        os.close(reading)
        os.close(writing)


def test_fifo_is_refused_if_several_processes_would_read_it(model: Path, tmp_path: Path) -> None:
    source, target = write_aligned(tmp_path, pairs(5))
    with fifo(tmp_path / "fifo", source.read_bytes()) as given:
        done = command("score", model, "--source", given, "--reference", target, "--processes", 2)
    assert_refused(done, str(given))


@pytest.mark.parametrize("task", ["translation", "language-modeling", "masked-lm", "parsing", "image-classification"])
def test_training_on_a_pipe_is_refused_at_once(task: str, tmp_path: Path) -> None:
    """Training reads its data several times."""
    given = tmp_path / "fifo"
    match task:
        case "translation":
            _, target = write_aligned(tmp_path, pairs(5))
            recipe = write_recipe_file(tmp_path / "recipe.toml", {"train": [{"path": "unused.tsv"}]})
            args: tuple[object, ...] = (recipe, "--source", given, "--target", target)
        case "image-classification":
            given = tmp_path / "fifo.npz"
            args = (small_images.write_recipe(tmp_path), "--data", given)
        case "parsing":
            args = (parsing.recipe_file(tmp_path), "--set", f"data.train.0.path={given}")
        case _:
            module = language_modeling if task == "language-modeling" else masked_lm
            args = (module.recipe_file(tmp_path, module.TEXT), "--set", f"data.train.0.path={given}")
    with fifo(given, b"red\n"), quick_runs(tmp_path / "cache"):
        assert_refused(command("train", *args, "--out", tmp_path / "run"), str(given), "read only once")
    assert not (tmp_path / "run").exists()


def test_closed_standard_input_is_refused_before_the_work() -> None:
    with mock.patch("tests.task.small.io.TextIOWrapper", return_value=None):
        assert_refused(command("translate", "no/such/model"), "Standard input is closed")


# What is no text

NO_TEXT: dict[str, tuple[bytes, tuple[str, ...]]] = {
    "UTF-16": ("red cat\r\nsun\r\n".encode("utf-16-le"), ("line 1", "UTF-16")),
    "UTF-16 with a byte-order mark": ("red cat\nsun\n".encode("utf-16"), ("byte 1", "UTF-8")),
    "lines that end with CR": (b"red cat\rsun\rsea\r", ("line 1", "CR")),
    "invalid UTF-8": (b"red cat\ncaf\xe9\n", ("line 2", "byte 4", "UTF-8")),
}


@pytest.mark.parametrize(("content", "parts"), NO_TEXT.values(), ids=NO_TEXT.keys())
def test_what_is_no_text_is_refused_with_its_line(
    content: bytes, parts: tuple[str, ...], model: Path, tmp_path: Path
) -> None:
    (tmp_path / "in.txt").write_bytes(content)
    assert_refused(command("translate", model, "--file", tmp_path / "in.txt"), str(tmp_path / "in.txt"), *parts)
    assert_refused(command("translate", model, stdin=content), "Standard input", *parts)


def test_endless_device_is_refused(model: Path) -> None:
    assert_refused(command("translate", model, "--file", "/dev/zero"), "/dev/zero, line 1")


def test_byte_order_mark_on_standard_input_is_removed(model: Path) -> None:
    assert command("translate", model, stdin=b"\xef\xbb\xbfred cat\n").out == command("translate", model, "red cat").out


def test_single_nul_is_a_character(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_bytes(b"red \0 cat\n\0\0\0\0\0\n")
    assert list(read_lines(tmp_path / "in.txt")) == ["red \0 cat", "\0" * 5]


# Long lines and bombs

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.compress,
}


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("before", [b"", b"red cat\n"])
def test_line_that_is_too_long_is_refused_with_its_number(
    before: bytes, suffix: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = 1 << 20
    monkeypatch.setattr("regard.data.text.lines.MAX_LINE_BYTES", limit)
    path = tmp_path / f"in{suffix}"
    path.write_bytes(COMPRESS[suffix](before + b"a" * (limit - 1) + b"\n"))
    assert sum(map(len, read_lines(path))) >= limit - 1
    path.write_bytes(COMPRESS[suffix](before + b"a" * 20 * limit))
    assert_refused(command("translate", model, "--file", path), f"{path}, line {1 + bool(before)}:")


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
def test_bomb_of_short_lines_is_refused(suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = b"a" * 127 + b"\n"
    monkeypatch.setattr("regard.data.text.lines.MAX_UNCHECKED_BYTES", 1 << 20)
    path = tmp_path / f"in{suffix}"
    path.write_bytes(COMPRESS[suffix](line * (1 << 13)))
    assert sum(1 for _ in read_lines(path)) == 1 << 13
    path.write_bytes(COMPRESS[suffix](line * (1 << 16)))
    with pytest.raises(UserError, match=rf"in{suffix}, line [0-9]+: the file expands"):
        assert sum(1 for _ in read_lines(path)) < 1 << 16


def test_bomb_of_images_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The header says that there is one image of one pixel."""
    monkeypatch.setattr("regard.data.text.lines.MAX_UNCHECKED_BYTES", 1 << 20)
    path = tmp_path / "images.gz"
    path.write_bytes(gzip.compress(bytes([0, 0, 8, 3, *[0, 0, 0, 1] * 3]) + bytes(1 << 23)))
    with pytest.raises(UserError, match=r"images\.gz.*expands"):
        read_idx(path)


@pytest.mark.parametrize("name", ["train", "cost"])
def test_endless_recipe_is_refused(name: str) -> None:
    assert_refused(command(name, "/dev/zero"), "/dev/zero")


def test_chunk_of_long_lines_is_short(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """4,000 lines of a megabyte each would be too much at a time."""
    monkeypatch.setattr("regard.cli.lines.CHUNK_CHARACTERS", 6)
    sizes = []
    monkeypatch.setattr(
        "regard.cli.commands.translate.announce_compilation", lambda backend, lines: sizes.append(lines)
    )
    lines = b"red\ncat\nsun\n\nold\n"
    assert (
        command("translate", model, stdin=lines).out
        == command("translate", model, *lines.decode().split("\n")[:-1]).out
    )
    assert sizes == [2, 5]


LONG_WORD = "a" * 400_000


def test_word_of_400_000_letters_is_refused_by_models_of_whole_texts(tmp_path: Path) -> None:
    """They have no limit of their own, but time and memory grow with the length."""
    done = command("generate", save_random_writer(tmp_path / "writer"), stdin=LONG_WORD.encode())
    assert_refused(done, "400,001 tokens", "shorten")
    text = tokenizer("word", ["red old big cat dog"])
    filler = save_random_encoder(tmp_path / "filler", text, {"kind": "masked_lm"})
    assert_refused(command("fill", filler, stdin=b"[MASK]" + b" red" * 40_000), "tokens", "split")
    with quick_runs(tmp_path / "cache"):
        recipe = read_recipe(parsing.recipe_file(tmp_path), ["train.steps=1", "tokenizer.kind=character"])
        parser = train(recipe, tmp_path / "parser").folder
    assert_refused(command("parse", parser, stdin=LONG_WORD.encode()), "400,000 tokens", "line")


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_long_words_are_cut_in_tokenizer_training(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library's time grows with the square of a word's length."""
    assert max(map(len, training._cut_long_words([LONG_WORD, " " * 400_000, f"red {LONG_WORD} cat"]))) <= 8192
    texts = ["the cat ate the mouse " * 2000, "red \n cat", ""]
    assert list(training._cut_long_words(texts)) == texts
    config = TokenizerConfig(kind=kind, vocab_size=300)
    trained = train_tokenizer(config, [*texts, LONG_WORD])
    assert trained.decode(trained.encode(LONG_WORD)) == LONG_WORD
