"""The chat template of a Hugging Face folder: a Jinja template that turns the messages of a chat into a prompt.

It is in a file of its own, or in tokenizer_config.json, where older versions of transformers have it: as a string, or
as a list of named templates, of which `default` is meant. An import keeps it as it is and never runs it. The names of
the special tokens, which it writes into the prompt, are recorded in run.json.
"""

from pathlib import Path
from typing import Any

from regard.errors import UserError
from regard.interop.huggingface.weights import read_if_there
from regard.run.folder import CHAT_TEMPLATE

MAX_TEMPLATE_CHARACTERS = 200_000
"""The longest template that is imported. The longest ones in use have some ten thousand characters."""
_ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def read_chat_template(directory: Path) -> str | None:
    """The template of a folder; None if it has none."""
    path = directory / CHAT_TEMPLATE
    if path.is_file():
        try:
            found: Any = path.read_bytes().decode("utf-8")
        except (OSError, UnicodeDecodeError):
            raise UserError(f"{path} cannot be read as UTF-8; download it again.") from None
    else:
        path = directory / "tokenizer_config.json"
        found = read_if_there(path).get("chat_template")
    if isinstance(found, list):
        tables = [each for each in found if isinstance(each, dict) and each.get("name") == "default"]
        found = tables[0].get("template") if tables else None
    if not isinstance(found, str) or not found.strip():
        return None
    if len(found) > MAX_TEMPLATE_CHARACTERS:
        raise UserError(
            f"{path}: the chat template has {len(found):,} characters, and at most {MAX_TEMPLATE_CHARACTERS:,} are "
            "read; remove it, or import another version of the model."
        )
    return found


def read_token_names(directory: Path) -> dict[str, str]:
    """The names of the special tokens by their roles, such as `bos_token`, as a template writes them."""
    names: dict[str, str] = {}
    for file in ("special_tokens_map.json", "tokenizer_config.json"):
        for role, value in read_if_there(directory / file).items():
            name = value.get("content") if isinstance(value, dict) else value
            if role in _ROLES and isinstance(name, str):
                names[role] = name
    return names
