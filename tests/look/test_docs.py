"""The code in docs/guides/look.md runs."""

import re
from pathlib import Path

import pytest

from regard.look.schema import BeamNode, GeneratedToken, Token, Trace

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "look.md"


def test_code_in_the_docs_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path))
    monkeypatch.delenv("REGARD_DATA", raising=False)
    monkeypatch.setattr("regard.look.analysis.dev_set.MAX_EXAMPLES", 2)  # instead of 100
    blocks = re.findall(r"^```py\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 5
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "look.md", "exec"), names)
        names["translator"] = names["model"]
    assert (tmp_path / "cat.safetensors").is_file()
    assert names["trace"].output == "Kedi fareyi yedi."  # type: ignore[attr-defined]


def test_every_field_of_the_header_is_documented() -> None:
    section = PAGE.read_text(encoding="utf-8").split("### Fields of the header")[1].split("###")[0]
    for message in (Trace, Token, GeneratedToken, BeamNode):
        assert set(message.model_fields) - {"format", "version", "id"} <= set(re.findall(r"`(\w+)`", section))
