"""Files and requests nested 200,000 levels deep, or with a number of 5,000 digits, are refused in a sentence."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import regard
from regard import UserError
from regard.config import parse_json, parse_toml
from regard.interop import import_huggingface
from regard.look.trace import trace_from_bytes
from regard.task.recipe_io import apply_override, read_recipe
from tests.cli.refusal import assert_refused
from tests.look.support import task_models
from tests.serve.support import check_refused, make_client
from tests.task.small import command

DEEP = "[" * 200_000 + "]" * 200_000
LONG = "9" * 5000


@pytest.fixture(params=[DEEP, LONG], ids=["deep", "long"])
def value(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def check(error: UserError | ValueError) -> None:
    text = str(error)
    assert "nested" in text or "digits" in text
    assert len(text) < 500
    assert "\n" not in text


@pytest.mark.parametrize(
    "parse", [lambda value: parse_json(f'{{"a": {value}}}'), lambda value: parse_toml(f"a = {value}")]
)
def test_parsers_raise_one_kind_of_error(parse: Callable[[str], Any], value: str) -> None:
    with pytest.raises(ValueError, match=r"nested|digits") as raised:
        parse(value)
    check(raised.value)


@pytest.mark.parametrize("part", ["a", '"a b" '])
def test_dotted_keys_nest_as_deep_as_lists(part: str) -> None:
    with pytest.raises(ValueError, match="nested"):
        parse_toml(".".join([part] * 200_000) + " = 1")


def test_ordinary_nesting_is_parsed() -> None:
    values = json.loads("[" * 90 + "]" * 90)
    assert parse_json(json.dumps(values)) == values


def test_recipe_is_refused(tmp_path: Path, value: str) -> None:
    (tmp_path / "r.toml").write_text(f"description = {value}", encoding="utf-8")
    with pytest.raises(UserError, match=r"r\.toml") as raised:
        read_recipe(tmp_path / "r.toml")
    check(raised.value)


def test_override_is_refused(value: str) -> None:
    with pytest.raises(UserError, match=r"--set train\.steps") as raised:
        apply_override({}, f"train.steps={value}")
    check(raised.value)


def test_override_with_a_deep_key_is_refused() -> None:
    with pytest.raises(UserError, match="nested that deep"):
        apply_override({}, f"{'a.' * 10_000}a=1")


def test_run_folder_is_refused(tmp_path: Path, value: str) -> None:
    (tmp_path / "run.json").write_text(f'{{"format": 1, "model": {value}}}', encoding="utf-8")
    with pytest.raises(UserError, match=r"run\.json") as raised:
        regard.load(tmp_path)
    check(raised.value)


def test_import_is_refused(tmp_path: Path, value: str) -> None:
    (tmp_path / "config.json").write_text(f'{{"model_type": {value}}}', encoding="utf-8")
    with pytest.raises(UserError, match=r"config\.json") as raised:
        import_huggingface(tmp_path, tmp_path / "out")
    check(raised.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("suffix", ["json", "toml"])
def test_model_config_of_the_cost_command_is_refused(tmp_path: Path, value: str, suffix: str) -> None:
    path = tmp_path / f"m.{suffix}"
    path.write_text(f'{{"kind": {value}}}' if suffix == "json" else f"kind = {value}", encoding="utf-8")
    assert_refused(command("cost", path), path.name)


def test_trace_is_refused(value: str) -> None:
    header = f'{{"__metadata__": {value}}}'.encode()
    with pytest.raises(UserError, match="not a trace"):
        trace_from_bytes(len(header).to_bytes(8, "little") + header)


def test_request_is_refused(value: str) -> None:
    client = make_client(task_models()["text-classification"])
    body = f'{{"text": "a", "beam_size": {value}}}'
    headers = {"content-type": "application/json"}
    status = 413 if value == DEEP else 422
    check_refused(client.post("/api/models/classification/traces", content=body, headers=headers), status)
    assert client.get(f"/api/models/{LONG}/diagram").status_code == 404
    assert client.get("/api/models", headers={"content-length": LONG}).status_code == 413
