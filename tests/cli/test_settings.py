"""`regard settings`."""

import json

from regard.task.registry import TASKS
from regard.task.settings import all_settings, task_settings
from tests.cli.refusal import assert_refused
from tests.task.small import command


def test_all_tables_are_listed_with_their_meaning() -> None:
    lines = command("settings").out.splitlines()
    listed = {line.split()[0] for line in lines}
    assert listed == {
        f"[{one.key}]" if one.is_table else one.key for one in all_settings() if one.is_table or "." not in one.key
    }
    assert any(line.split() == ["task", "What", "the", "model", "is", "trained", "to", "do."] for line in lines)


def test_all_keys_of_a_task_are_listed() -> None:
    done = command("settings", "--task", "masked-lm")
    listed = [line.split()[0].strip("[]") for line in done.out.splitlines()]
    assert listed == list(dict.fromkeys(one.key for one in task_settings("masked-lm")))


def test_a_key_is_explained() -> None:
    done = command("settings", "train.save_dtype")
    key, described, *meaning, tasks = done.out.splitlines()
    assert (done.code, key) == (0, "train.save_dtype")
    assert described == '  one of "float32", "float16"; default: "float32"'
    assert " ".join(" ".join(meaning).split()).startswith("The dtype of the saved model")
    assert tasks == "  Tasks: all."


def test_keys_with_the_same_description_are_explained_together() -> None:
    done = command("settings", "attention.kv_latent", "--task", "translation")
    assert done.out.splitlines()[:2] == ["model.decoder.attention.kv_latent", "model.encoder.attention.kv_latent"]
    assert done.out.count("; required") == 1
    assert 'Only with kind = "latent".' in done.out


def test_json_has_every_key() -> None:
    records = [json.loads(line) for line in command("settings", "--json").out.splitlines()]
    assert [one["key"] for one in records] == [one.key for one in all_settings()]
    steps = next(one for one in records if one["key"] == "train.steps")
    assert (steps["required"], sorted(steps["tasks"])) == (True, sorted({*TASKS} - {"word-vectors"}))


def test_unknown_key_is_refused_with_the_nearest() -> None:
    assert_refused(command("settings", "train.lr"), "'train.lr'", "train.schedule.lr")
    assert_refused(command("settings", "masking", "--task", "parsing"), "'masking'")
    assert_refused(command("settings", "--task", "parse"), "'parse'", "parsing")
