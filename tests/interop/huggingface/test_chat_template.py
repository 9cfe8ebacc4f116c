"""The chat template of a model is kept by imports and exports."""

import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from regard.errors import UserError
from regard.interop import import_huggingface
from regard.interop.huggingface.chat_template import MAX_TEMPLATE_CHARACTERS, read_chat_template
from regard.interop.huggingface.export import export_huggingface
from regard.run import load_model
from tests.interop.huggingface.support import edit_json
from tests.look.support import tokenizer

TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}\r\n"


@pytest.fixture
def theirs(save_hf) -> Path:
    text = tokenizer().tokenizer
    config = LlamaConfig(
        vocab_size=text.get_vocab_size(),
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        bos_token_id=1,
        eos_token_id=2,
    )
    directory: Path = save_hf(LlamaForCausalLM(config))
    fast = PreTrainedTokenizerFast(tokenizer_object=text, bos_token="⟨bos⟩", eos_token="⟨eos⟩", chat_template=TEMPLATE)
    fast.save_pretrained(directory)
    return directory


def test_template_goes_through_import_and_export(theirs: Path, tmp_path: Path) -> None:
    ours, back = tmp_path / "ours", tmp_path / "back"
    import_huggingface(theirs, ours)
    assert (ours / "chat_template.jinja").read_bytes().decode() == TEMPLATE
    assert "chat_template.jinja" in json.loads((ours / "run.json").read_text(encoding="utf-8"))["sha256"]
    assert load_model(ours).origin["chat_tokens"] == {"bos_token": "⟨bos⟩", "eos_token": "⟨eos⟩"}
    export_huggingface(ours, back)
    assert AutoTokenizer.from_pretrained(back).chat_template == AutoTokenizer.from_pretrained(theirs).chat_template


def test_changed_template_is_noticed_when_the_model_is_loaded(theirs: Path, tmp_path: Path) -> None:
    import_huggingface(theirs, tmp_path / "ours")
    (tmp_path / "ours" / "chat_template.jinja").write_text("changed")
    with pytest.raises(UserError, match=r"chat_template\.jinja is missing or damaged"):
        load_model(tmp_path / "ours")


def test_template_may_be_in_the_tokenizer_config_with_a_name(theirs: Path) -> None:
    (theirs / "chat_template.jinja").unlink(missing_ok=True)
    named = [{"name": "tool_use", "template": "other"}, {"name": "default", "template": TEMPLATE}]
    for given, expected in ((TEMPLATE, TEMPLATE), (named, TEMPLATE), (named[:1], None), (5, None), (" ", None)):
        edit_json(theirs / "tokenizer_config.json", chat_template=given)
        assert read_chat_template(theirs) == expected


def test_unusable_template_ends_the_import(theirs: Path, tmp_path: Path) -> None:
    for content, part in ((b"\xff", "UTF-8"), (b"x" * (MAX_TEMPLATE_CHARACTERS + 1), "200,001 characters")):
        (theirs / "chat_template.jinja").write_bytes(content)
        with pytest.raises(UserError, match=part):
            import_huggingface(theirs, tmp_path / "ours")
        assert not (tmp_path / "ours").exists()
