"""The code in docs/guides/look.md runs."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from regard.look.analysis.attribution.contrast import explain_choice
from regard.look.analysis.attribution.logit_lens import look_through_layers
from regard.look.analysis.head_roles.roles import measure_head_roles
from regard.look.models.auto import load_traced_model
from regard.look.schema import (
    BeamNode,
    Contrast,
    ContrastRequest,
    GeneratedToken,
    Hypothesis,
    LengthPenalty,
    LensRequest,
    RunRequest,
    Token,
    Trace,
)

ROOT = Path(__file__).parents[2]
PAGE, RESULTS = ROOT / "docs" / "guides" / "look.md", ROOT / "benchmarks" / "results"


def test_code_in_the_docs_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path))
    monkeypatch.delenv("REGARD_DATA", raising=False)
    monkeypatch.setattr("regard.look.analysis.dev_set.MAX_EXAMPLES", 2)  # instead of 100
    blocks = re.findall(r"^```py\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 6
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "look.md", "exec"), names)
        names["translator"] = names["model"]
    assert (tmp_path / "cat.safetensors").is_file()
    assert names["trace"].output == "Kedi fareyi yedi."  # type: ignore[attr-defined]


def test_every_field_of_the_header_is_documented() -> None:
    section = PAGE.read_text(encoding="utf-8").split("### Fields of the header")[1].split("###")[0]
    for message in (Trace, Token, GeneratedToken, BeamNode, Hypothesis, LengthPenalty):
        assert set(message.model_fields) - {"format", "version", "id"} <= set(re.findall(r"`(\w+)`", section))


def phrase_counts() -> dict[str, Any]:
    """How many training pairs have a phrase, and some words on the other side."""
    cases = json.loads((RESULTS / "phrase-counts.json").read_text(encoding="utf-8"))["cases"]
    return {case["case"]: case for case in cases}


def test_numbers_of_the_bank_example_are_those_of_the_model() -> None:
    traced: Any = load_traced_model("en-tr")

    def explain(text: str, written: str) -> tuple[Any, Contrast]:
        trace = traced.trace(RunRequest(text=text))
        (position,) = [index for index, token in enumerate(trace.header.target) if token.text == written]
        *_, (_, found) = explain_choice(traced, trace, ContrastRequest(position=position, contrast="kıyısına"))
        return trace, found

    trace, found = explain("He sat on the bank of the river.", "bank")
    heads = {(each.attention_type, each.layer, each.head): found.margin + each.change for each in found.heads}
    margins = [*heads.values(), *(found.margin + each.change for each in found.feed_forwards)]
    source = [token.text for token in trace.header.source]
    words = {source[each.positions[0]]: each.change for each in found.words if each.side == "source"}
    prefix = [*found_ids(trace, found), *(token.id for token in found.contrast_tokens)]
    other = traced.trace(RunRequest(text=trace.text, prefix_tokens=prefix)).header
    cell = look_through_layers(traced, trace, LensRequest()).layers[2][found.position]
    pairs = phrase_counts()[r"\bbanks?\b"]
    looked = trace.attention("encoder", 0, 1)[source.index("bank"), source.index("river")]
    expected = [
        f"*{trace.output}*",
        f"with {100 * found.contrast_probability:.1f} %",
        f"*bank* {100 * found.probability:.0f} %",
        f"The margin is {found.margin:.2f}.",
        f"Without *bank* the margin changes by {words['bank']:.2f}",
        f"Without *river* it changes by {words['river']:+.2f}",
        f"rises to {max(heads.values()):.2f}",
        f"*bank* gives {100 * float(looked):.0f} % of its attention to *river*",
        f"The margin is {explain('He sat on the bank.', 'bank')[1].margin:.2f}.",
        f"*{other.output}* has a log-probability of {other.log_probability:.2f}, the model's own output "
        f"{trace.header.log_probability:.2f}",
        f"*bank* has rank {cell.rank}, behind *{cell.tokens[0].token.text}* and *{cell.tokens[1].token.text}*",
        f"between {min(margins):.2f} and {max(margins):.2f}",
        f"Without *of* it changes by {words['of']:.2f} and without *on* by {words['on']:.2f}",
        f"of the {pairs['with_phrase']} pairs with *bank* or *banks*, {pairs['found']['banka']} have a form of *banka* "
        f"and {pairs['found']['kıyı']} a form of *kıyı*",
    ]
    assert max(heads, key=lambda head: heads[head]) == ("encoder", 0, 1)
    section = PAGE.read_text(encoding="utf-8").split("### Which *bank*?")[1].split("\n### ")[0]
    text = " ".join(section.split())
    for phrase in expected:
        assert phrase.replace("-", "−").replace("log−", "log-") in text


def test_numbers_of_the_light_example_are_those_of_the_model_and_its_data() -> None:
    traced: Any = load_traced_model("en-tr")
    trace = traced.trace(RunRequest(text="The light meal is good."))
    *_, (_, found) = explain_choice(traced, trace, ContrastRequest(position=1, contrast="Hafif"))
    source = [token.text for token in trace.header.source]
    words = {source[each.positions[0]]: each.change for each in found.words if each.side == "source"}
    pieces = [token.piece for token in trace.header.source]
    edited = traced.trace(RunRequest(text=trace.text, source_tokens=["A", *pieces[1:]])).header
    assert [token.text for token in edited.source[:2]] == ["A", "light"]
    counts = phrase_counts()
    the, a = counts[r"^The light\b"], counts[r"^A light\b"]
    assert the["found"] == {"hafif": 0, "ışı": the["with_phrase"]}
    assert a["found"] == {"hafif": a["with_phrase"], "ışı": 0}
    expected = [
        f"*{trace.output}*",
        f"*Işık*, {100 * found.probability:.0f} %",
        f"*Hafif*, with {100 * found.contrast_probability:.1f} %",
        f"The margin is {found.margin:.2f}.",
        f"Without *The* the margin changes by {words['The']:.2f}".replace("-", "−"),
        f"without it the margin changes by {words['meal']:+.2f}",
        f"*{edited.output}*, with {100 * edited.generated[0].probability:.0f} % for *Haf*",
        f"{the['pairs']:,} training pairs, {the['with_phrase']} begin with *The light*",
        f"all {a['with_phrase']} that begin with *A light* have *hafif*",
    ]
    assert -words["The"] > found.margin
    section = PAGE.read_text(encoding="utf-8").split("### A *light* meal")[1].split("\n## ")[0]
    text = " ".join(section.split())
    for phrase in expected:
        assert phrase in text


def test_heads_that_the_page_names_do_what_it_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path))
    monkeypatch.delenv("REGARD_DATA", raising=False)
    traced = load_traced_model("en-tr")
    roles = measure_head_roles(traced, folder=traced.folder)

    def heads(attention_type: str, measure: str, count: int | None = None) -> list[str]:
        """The heads with a tag, or the best ones by an error rate."""
        found = [role for role in roles.heads if (role.attention_type, role.measure) == (attention_type, measure)]
        best = sorted(found, key=lambda role: role.value)[:count] if count else found
        return sorted(f"{role.layer + 1}.{role.head + 1}" for role in best if role.tagged)

    assert heads("encoder", "previous") == ["1.3", "4.2"]
    assert heads("encoder", "next") == ["1.1", "2.1"]
    assert heads("encoder", "end") == ["2.2", "2.4", "3.2", "3.4", "5.1"]
    assert heads("cross", "alignment-written", 3) == ["2.1", "2.4", "3.2"]
    assert heads("cross", "alignment-read") == ["1.1"]
    section = PAGE.read_text(encoding="utf-8").split("## What heads do")[1].split("\n## ")[0]
    assert "heads 1.3 and 4.2 attend to the previous token and 1.1 and 2.1 to the next one" in section
    assert "(2.2, 2.4, 3.2, 3.4 and 5.1)" in section
    others = [role for role in roles.heads if (role.layer, role.head) != (0, 0)]
    written, read = (
        [role.value for role in others if role.measure == f"alignment-{side}"] for side in ("written", "read")
    )
    assert all(far - near > 0.25 for near, far in zip(written, read, strict=True))


def found_ids(trace: Any, found: Contrast) -> list[int]:
    """The ids that were generated before the choice."""
    return [token.id for token in trace.header.target[1 : found.position + 1]]
