"""sentence-transformers folders: an encoder, and how its token vectors are pooled.

modules.json lists the steps. They must be the encoder, mean pooling and, optionally, normalization: that is
`Encoder.sentence_vectors`. It normalizes in any case, which changes no cosine.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, normalizers

from regard.errors import UserError
from regard.interop.huggingface.hf_config import HFConfig
from regard.interop.huggingface.weights import read_any_json, read_if_there, read_json

_MODULES, _SETTINGS = "modules.json", "sentence_bert_config.json"
_STEPS = (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"])
_MEAN = ("pooling_mode_mean_tokens",)


def read_sentence(directory: Path) -> dict[str, Any]:
    """The folder's configuration as plain data; empty for a folder of another kind."""
    if not (directory / _MODULES).is_file():
        return {}
    modules = read_any_json(directory / _MODULES)
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise UserError(f"{directory / _MODULES} should hold a list of steps; download it again.")
    steps = [str(module.get("type")).rpartition(".")[2] for module in modules]
    if steps not in _STEPS:
        raise _refused(directory / _MODULES, f"makes sentence vectors by {', '.join(steps)}")
    pooling = directory / _place(modules[1], directory) / "config.json"
    if not pooling.is_file():
        raise UserError(f"{pooling} is missing, though {_MODULES} names its folder; download it too.")
    hf_config = read_json(pooling)
    modes = tuple(key for key in hf_config if key.startswith("pooling_mode_") and hf_config[key] is True)
    if (hf_config.get("pooling_mode") or modes) not in ("mean", _MEAN):
        named = hf_config.get("pooling_mode") or ", ".join(modes) or "no pooling at all"
        raise _refused(pooling, f"makes sentence vectors by {named}")
    model = directory / _place(modules[0], directory)
    return {
        "encoder": _place(modules[0], directory),
        "modules": modules,
        "pooling": hf_config,
        "settings": read_if_there(model / _SETTINGS),
    }


def fit_tokenizer(tokenizer: Tokenizer, sentence: Mapping[str, Any], directory: Path) -> None:
    """Truncate and lowercase texts, if the folder asks for it."""
    hf_config = HFConfig(sentence.get("settings") or {}, str(directory / _SETTINGS))
    if hf_config.has("max_seq_length"):
        tokenizer.enable_truncation(hf_config.integer("max_seq_length"))
    if hf_config.flag("do_lower_case", False):
        given = tokenizer.normalizer
        steps = [normalizers.Lowercase(), *([] if given is None else [given])]
        tokenizer.normalizer = normalizers.Sequence(steps)


def write_sentence(folder: Path, sentence: Mapping[str, Any]) -> None:
    """Write the files of such a folder, beside the encoder's."""
    modules = [{**module} for module in sentence["modules"]]
    modules[0]["path"] = ""
    tables = {_MODULES: modules, f"{modules[1]['path']}/config.json": sentence["pooling"]}
    if sentence["settings"]:
        tables[_SETTINGS] = sentence["settings"]
    for name, table in tables.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(table, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _place(module: Mapping[str, Any], directory: Path) -> str:
    """The folder of a module: a plain name, or empty for the folder itself."""
    path = module.get("path")
    if not isinstance(path, str) or Path(path).name != path or path == "..":
        raise UserError(f"{directory / _MODULES} names the folder {path!r}; expected the name of one beside it.")
    return path


def _refused(path: Path, found: str) -> UserError:
    return UserError(
        f"{path} {found}, but regard takes the mean over all tokens; remove {_MODULES} to import the encoder alone."
    )
