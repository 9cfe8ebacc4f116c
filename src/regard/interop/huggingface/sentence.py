"""Folders of sentence-transformers: an encoder, and beside it how one vector is made of those of its tokens.

modules.json lists the steps. Here they must be the encoder, the mean over its tokens and, if anything, a last scaling
to length 1: that is `Encoder.sentence_vectors`. It scales in any case, which changes no cosine.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, normalizers

from regard.errors import UserError
from regard.interop.huggingface.settings import Settings
from regard.interop.huggingface.weights import parse_json, read_if_there, read_json

_MODULES, _SETTINGS = "modules.json", "sentence_bert_config.json"
_STEPS = (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"])
_MEAN = ("pooling_mode_mean_tokens",)


def read_sentence(directory: Path) -> dict[str, Any]:
    """What such a folder says, as plain data; nothing for a folder of another kind."""
    if not (directory / _MODULES).is_file():
        return {}
    modules = parse_json(directory / _MODULES)
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise UserError(f"{directory / _MODULES} should hold a list of steps; fetch it again.")
    steps = [str(module.get("type")).rpartition(".")[2] for module in modules]
    if steps not in _STEPS:
        raise _refused(directory / _MODULES, f"makes sentence vectors by {', '.join(steps)}")
    pooling = directory / _place(modules[1], directory) / "config.json"
    if not pooling.is_file():
        raise UserError(f"{pooling} is missing, though {_MODULES} names its folder; fetch it too.")
    settings = read_json(pooling)
    modes = tuple(key for key in settings if key.startswith("pooling_mode_") and settings[key] is True)
    if (settings.get("pooling_mode") or modes) not in ("mean", _MEAN):
        named = settings.get("pooling_mode") or ", ".join(modes) or "no pooling at all"
        raise _refused(pooling, f"makes sentence vectors by {named}")
    model = directory / _place(modules[0], directory)
    return {
        "encoder": _place(modules[0], directory),
        "modules": modules,
        "pooling": settings,
        "settings": read_if_there(model / _SETTINGS),
    }


def fit_tokenizer(tokenizer: Tokenizer, sentence: Mapping[str, Any], directory: Path) -> None:
    """Cut texts, and make them small, where the folder asks for it."""
    settings = Settings(sentence.get("settings") or {}, str(directory / _SETTINGS))
    if settings.has("max_seq_length"):
        tokenizer.enable_truncation(settings.whole("max_seq_length"))
    if settings.flag("do_lower_case", False):
        given = tokenizer.normalizer
        steps = [normalizers.Lowercase(), *([] if given is None else [given])]
        tokenizer.normalizer = normalizers.Sequence(steps)


def write_sentence(folder: Path, sentence: Mapping[str, Any]) -> None:
    """The files of such a folder, the encoder's beside them."""
    modules = [{**module} for module in sentence["modules"]]
    modules[0]["path"] = ""
    tables = {_MODULES: modules, f"{modules[1]['path']}/config.json": sentence["pooling"]}
    if sentence["settings"]:
        tables[_SETTINGS] = sentence["settings"]
    for name, table in tables.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(table, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _place(module: Mapping[str, Any], directory: Path) -> str:
    """The folder of a step: a plain name, or none where it is the folder itself."""
    path = module.get("path")
    if not isinstance(path, str) or Path(path).name != path or path == "..":
        raise UserError(f"{directory / _MODULES} names the folder {path!r}; expected the name of one beside it.")
    return path


def _refused(path: Path, found: str) -> UserError:
    return UserError(
        f"{path} {found}, but regard takes the mean over all tokens; remove {_MODULES} to import the encoder alone."
    )
