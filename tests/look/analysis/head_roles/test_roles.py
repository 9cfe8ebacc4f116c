"""What heads do: planted heads are recognized, and every number equals one computed with plain loops."""

import gzip
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from regard import UserError
from regard.attention import multi_head
from regard.attention.mask import Mask
from regard.look.analysis.dev_set import load_dev_set
from regard.look.analysis.head_roles.counts import OFFSETS
from regard.look.analysis.head_roles.recording import record_example
from regard.look.analysis.head_roles.roles import measure_head_roles, measure_roles
from regard.look.schema import AttentionType, HeadRole, HeadRoles, HeadRolesRequest
from regard.model import EncoderConfig
from tests.look.analysis.test_head_importance import LINES
from tests.look.support import autoregressive_model, task_models
from tests.model.before.samples import SAMPLES

PAIRS = [f"{source}\t{target}" for source, target in pairwise(line.split("\t")[0] for line in LINES["translation"] * 4)]
PREVIOUS, IDENTITY, UNIFORM, END = range(4)
"""The planted heads."""


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the attention weights of all heads."""

    def planted(query: Tensor, key: Tensor, value: Tensor, mask: Mask, **_: Any) -> tuple[Tensor, Tensor]:
        queries, keys = query.shape[2], key.shape[2]
        rows = torch.arange(queries)
        visible = mask.dense()[0, 0].expand(queries, keys) if not mask.is_full else torch.ones(queries, keys)
        weights = torch.zeros(1, 4, queries, keys, dtype=query.dtype)
        weights[0, PREVIOUS, rows, (rows - 1).clamp(0, keys - 1)] = 1
        weights[0, IDENTITY, rows, rows.clamp(max=keys - 1)] = 1
        weights[0, UNIFORM] = visible / visible.sum(dim=-1, keepdim=True)
        weights[0, END, :, -1] = 1
        return weights @ value, weights

    monkeypatch.setattr(multi_head, "attend_with_weights", planted)


def role(roles: HeadRoles, attention_type: AttentionType, head: int, measure: str, layer: int = 1) -> HeadRole:
    (found,) = [
        each
        for each in roles.heads
        if (each.attention_type, each.layer, each.head, each.measure) == (attention_type, layer, head, measure)
    ]
    return found


def tags(roles: HeadRoles, attention_type: AttentionType, head: int) -> set[str]:
    return {
        each.measure
        for each in roles.heads
        if (each.attention_type, each.head, each.tagged) == (attention_type, head, True)
    }


def test_planted_heads_are_recognized(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    roles = measure_head_roles(autoregressive_model(), HeadRolesRequest(lines=PAIRS))
    assert roles.examples == len(PAIRS)
    for attention_type in ("encoder", "decoder"):
        assert role(roles, attention_type, PREVIOUS, "previous").value == 1
        assert role(roles, attention_type, IDENTITY, "previous").value == 0
        assert role(roles, attention_type, IDENTITY, "current").maximum == 1
        assert tags(roles, attention_type, PREVIOUS) == {"previous"}
        assert tags(roles, attention_type, IDENTITY) == {"current"}
        assert tags(roles, attention_type, UNIFORM) == set()
        for measure in ("previous", "current"):
            uniform = role(roles, attention_type, UNIFORM, measure)
            assert uniform.value == pytest.approx(uniform.baseline)
            assert uniform.maximum == pytest.approx(uniform.baseline)  # all keys are the largest, each in part
    assert tags(roles, "encoder", END) == tags(roles, "cross", END) == {"end"}
    assert role(roles, "encoder", END, "end").value == role(roles, "cross", END, "end").value == 1
    assert role(roles, "cross", END, "alignment-written").value == 1  # a maximum on ⟨eos⟩ is no link
    assert {each.measure for each in roles.heads if each.attention_type == "decoder"}.isdisjoint({"next", "end"})


def test_masked_keys_are_not_in_the_baseline(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a sliding window over two tokens, uniform attention gives half to the previous one."""
    from tests.model.small_models import language_model, stack

    plant(monkeypatch)
    model = autoregressive_model(language_model(decoder=stack(pattern="sliding(2)")))
    roles = measure_head_roles(model, HeadRolesRequest(lines=LINES["language-modeling"]))
    assert role(roles, "decoder", UNIFORM, "previous").baseline == pytest.approx(0.5)
    assert role(roles, "decoder", UNIFORM, "previous").value == pytest.approx(0.5)


def test_shares_equal_plain_loops() -> None:
    traced_model = autoregressive_model(dtype=torch.float32)
    roles = measure_head_roles(traced_model, HeadRolesRequest(lines=PAIRS))
    kinds: tuple[AttentionType, ...] = ("encoder", "decoder", "cross")
    for attention_type in kinds:
        sums = {name: [0.0, 0.0, 0.0, 0] for name in ("previous", "same", "end", "punctuation")}
        offsets = {name: dict.fromkeys(OFFSETS, 0) for name in sums}
        for example in load_dev_set(traced_model, PAIRS, None).examples:
            recorded = record_example(traced_model, example)
            keys, weights = recorded.keys(attention_type), recorded.layers[attention_type, 1].weights[2].tolist()
            for query, row in enumerate(weights):
                seen = [key for key in range(len(keys)) if attention_type != "decoder" or key <= query]
                others = seen if attention_type == "cross" else [key for key in seen if key != query]
                wanted = {
                    "previous": [query - 1] if query > 0 and attention_type != "cross" else [],
                    "same": [k for k in others if not keys[k].special and keys[k].id == keys[query].id]
                    if attention_type != "cross"
                    else [],
                    "end": [key for key in others if keys[key].piece == "⟨eos⟩"],
                    "punctuation": [key for key in others if keys[key].text in (",", "'", "?")],
                }
                for name, chosen in wanted.items():
                    if chosen and len(seen) > 1:
                        best = max(range(len(keys)), key=row.__getitem__)
                        shares = (sum(row[key] for key in chosen), best in chosen, len(chosen) / len(seen), 1)
                        sums[name] = [total + part for total, part in zip(sums[name], shares, strict=True)]
                        for offset in OFFSETS:
                            offsets[name][offset] += query + offset in chosen
        for name, (share, maximum, uniform, count) in sums.items():
            measured = [each for each in roles.measures if (each.attention_type, each.name) == (attention_type, name)]
            assert [each.count for each in measured] == ([count] if count else [])
            if count:
                found = role(roles, attention_type, 2, name)
                assert found.value == pytest.approx(share / count, abs=1e-6)
                assert found.maximum == pytest.approx(maximum / count)
                fixed = 0 if name == "previous" else max(offsets[name].values())
                assert found.baseline == pytest.approx(max(uniform, fixed) / count)


@pytest.mark.parametrize("task", list(LINES))
def test_every_task_is_measured(task: str) -> None:
    traced_model = task_models()[task]
    roles = measure_head_roles(traced_model, HeadRolesRequest(lines=LINES[task]))
    assert roles.examples == len(LINES[task])
    assert all(math.isfinite(each.value) and 0 <= each.value <= 1.000001 for each in roles.heads)
    listed = {(each.attention_type, each.name) for each in roles.measures}
    expected = {
        (spec.attention_type, layer, head, name)
        for spec in traced_model.summary().attention
        for layer in range(spec.layers)
        for head in range(spec.heads)
        for attention_type, name in listed
        if attention_type == spec.attention_type
    }
    assert {(each.attention_type, each.layer, each.head, each.measure) for each in roles.heads} == expected
    assert len(roles.heads) == len(expected) > 0
    assert (("cross", "alignment-written") in listed) == (task == "translation")
    assert roles.sentences == (2 if task == "parsing" else 0)


@pytest.mark.parametrize(("kind", "name"), [("recurrent-attention", "plain"), ("context", "cosine")])
def test_models_with_weights_only_are_measured(kind: str, name: str) -> None:
    """The second one attends to the source and the target so far at once: both parts together add up to 1."""
    traced_model = autoregressive_model(SAMPLES[kind][name], torch.float32)
    roles = measure_head_roles(traced_model, HeadRolesRequest(lines=PAIRS))
    assert {each.name for each in roles.measures if each.attention_type == "cross"} >= {"end", "alignment-written"}
    if kind == "context":
        example = record_example(traced_model, load_dev_set(traced_model, PAIRS, None).examples[0])
        cross, decoder = example.layers["cross", 0], example.layers["decoder", 0]
        assert cross.key_counts.tolist() == [len(example.source) + read for read in range(1, len(example.target))]
        maxima = torch.cat((cross.weights, decoder.weights), dim=-1).amax(dim=-1)
        torch.testing.assert_close(cross.maxima, maxima)


def test_an_encoder_without_a_task_reads_the_lines() -> None:
    from regard.look.models.encoder import TracedTextEncoder

    fill_mask: Any = task_models()["masked-lm"]
    assert isinstance(fill_mask.model.config, EncoderConfig)
    traced_model = TracedTextEncoder(fill_mask.pipeline, "encoder", fill_mask.tokenizer)
    lines = ["the old man sat", "", "a cat"]
    roles = measure_head_roles(traced_model, HeadRolesRequest(lines=lines))
    assert roles.examples == 2
    assert roles == measure_head_roles(fill_mask, HeadRolesRequest(lines=lines))  # of the text without masks


def test_results_grow_example_by_example() -> None:
    steps = list(measure_roles(autoregressive_model(), HeadRolesRequest(lines=PAIRS)))
    assert [total for total, _ in steps] == [len(PAIRS) + 1] * (len(PAIRS) + 2)
    assert steps[0][1].heads == []
    assert steps[-1][1].examples == len(PAIRS)


def test_sentences_too_long_to_align_leave_the_other_measures() -> None:
    lines = [f"{'a ' * 120}\t{'the ' * 120}"]
    roles = measure_head_roles(autoregressive_model(), HeadRolesRequest(lines=lines))
    assert {each.name for each in roles.measures if each.attention_type == "cross"} == {"first", "end"}
    assert any("all sentences are too long" in note for note in roles.notes)


def test_models_without_tokens_or_attention_are_refused() -> None:
    with pytest.raises(UserError, match="this model reads images"):
        measure_head_roles(task_models()["image-classification"])
    with pytest.raises(UserError, match="has no attention"):
        measure_head_roles(autoregressive_model(SAMPLES["window-lm"]["plain"], torch.float32))


def test_english_is_parsed_by_a_treebank_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = ["1\tthe\t_\tDET\t_\t_\t2\tdet\t_\t_", "2\tcat\t_\tNOUN\t_\t_\t3\tnsubj\t_\t_"]
    rows += ["3\tate\t_\tVERB\t_\t_\t0\troot\t_\tSpaceAfter=No", "4\t.\t_\tPUNCT\t_\t_\t3\tpunct\t_\t_", ""]
    (tmp_path / "en_tiny-ud-dev.conllu").write_text("\n".join(["# text = the cat ate.", *rows] * 30) + "\n")
    monkeypatch.setenv("REGARD_DATA", str(tmp_path))
    roles = measure_head_roles(autoregressive_model(), HeadRolesRequest(lines=PAIRS))
    counts = {each.name: each.count for each in roles.measures if "governor" in each.name}
    assert counts == {"governor": 60, "governor: det": 30, "governor: nsubj": 30}
    assert role(roles, "encoder", 0, "governor").baseline == 1  # always the next word
    assert any("en_tiny-ud-dev.conllu" in note for note in roles.notes)
    (tmp_path / "en_tiny-ud-dev.conllu").unlink()
    (tmp_path / "gum").mkdir()
    with gzip.open(tmp_path / "gum" / "dev.clean.gz", "wt") as file:
        file.write("(TOP (S (NP (DT the) (NN cat)) (VP (VBD ate))))\n" * 25)
    trees = measure_head_roles(autoregressive_model(), HeadRolesRequest(lines=PAIRS))
    assert {each.name for each in trees.measures} >= {"governor", "governor: DT in NP", "governor: NP in S"}
    turkish = [f"kedi fareyi yedi\t{line}" for line in LINES["language-modeling"]]
    assert measure_head_roles(autoregressive_model(), HeadRolesRequest(lines=turkish)).sentences == 0
