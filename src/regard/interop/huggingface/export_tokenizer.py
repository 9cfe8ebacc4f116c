"""Write a run folder's tokenizers and chat template for transformers."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, processors

from regard.data.tokenizers.tokenizer import SPECIAL_NAMES
from regard.interop.huggingface.weights import write_json
from regard.run import LoadedModel
from regard.run.folder import CHAT_TEMPLATE


def write_tokenizers(folder: Path, loaded: LoadedModel, hf_config: Mapping[str, Any], imported: bool) -> None:
    """Write the tokenizer with the names of its special tokens; a separate target tokenizer gets its own folder."""
    if loaded.tokenizer is None:
        return
    _write_tokenizer(folder, loaded.tokenizer, hf_config, imported)
    if loaded.target_tokenizer is not None and loaded.target_tokenizer is not loaded.tokenizer:
        target = folder / "target_tokenizer"
        target.mkdir()
        _write_tokenizer(target, loaded.target_tokenizer, hf_config, imported)
    if loaded.path is not None and (template := loaded.path / CHAT_TEMPLATE).is_file():
        shutil.copyfile(template, folder / CHAT_TEMPLATE)


def _write_tokenizer(folder: Path, given: Tokenizer, hf_config: Mapping[str, Any], imported: bool) -> None:
    tokenizer = Tokenizer.from_str(given.to_str())
    tokenizer_config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"],
    }
    if not imported:
        tokenizer_config["split_special_tokens"] = True  # special tokens in the input are plain text
        if hf_config.get("is_encoder_decoder"):
            tokenizer_config["model_max_length"] = hf_config["max_position_embeddings"]
    if hf_config["model_type"] == "bert":
        tokenizer_config["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    for role in ("pad_token", "bos_token", "eos_token", "mask_token", "sep_token", "cls_token"):
        number = hf_config.get(f"{role}_id")
        number = number[0] if isinstance(number, list) and number else number
        name = tokenizer.id_to_token(number) if type(number) is int and number >= 0 else None
        if name is not None:
            tokenizer_config[role] = name
    word_pieces = isinstance(tokenizer.model, models.WordPiece)
    unknown = tokenizer.model.unk_token if word_pieces else SPECIAL_NAMES["unk"]
    if tokenizer.token_to_id(unknown) is not None:
        tokenizer_config["unk_token"] = unknown
    # Our translators append EOS to a source and our language models prepend BOS to a prompt, if they have one;
    # transformers leaves that to the tokenizer.
    translates = hf_config.get("is_encoder_decoder")
    generates = not imported and hf_config["model_type"] != "bert"
    added = tokenizer_config.get("eos_token" if translates else "bos_token")
    if added is not None and tokenizer.post_processor is None and (translates or generates):
        tokenizer.post_processor = processors.TemplateProcessing(
            single=["$A", added] if translates else [added, "$A"],
            pair=["$A", "$B", added] if translates else [added, "$A", "$B"],
            special_tokens=[(added, tokenizer.token_to_id(added))],
        )
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", tokenizer_config)
