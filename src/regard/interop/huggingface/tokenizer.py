"""Read the tokenizer of a Hugging Face folder, in any of its formats, as a `tokenizers.Tokenizer`.

    tokenizer.json                          read without changes
    source.spm + target.spm + vocab.json    Marian: one tokenizer per side
    vocab.json + merges.txt                 byte-level BPE: GPT-2, BART
    tokenizer.model                         SentencePiece: Llama, Mistral
    vocab.txt                               WordPiece: BERT

Truncation and padding are removed from tokenizer.json, since transformers sets both per call, whatever the file says.

A folder with none of these files has no tokenizer; an incomplete set is an error.
"""

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from regard.data.tokenizers.tokenizer import read_tokenizer
from regard.errors import UserError
from regard.interop.huggingface.sentencepiece import (
    SentencePieceModel,
    add_normalizer_and_decoder,
    hide,
    read_sentencepiece,
    to_tokenizer,
    unigram_scores,
)
from regard.interop.huggingface.weights import read_json

Pair = tuple[Tokenizer | None, Tokenizer | None]
"""The source tokenizer (or the only one), and the target tokenizer if it differs."""

_GPT2_TOKENS = dict.fromkeys(("bos_token", "eos_token", "unk_token"), AddedToken("<|endoftext|>", normalized=False))
_LLAMA_TOKENS = {
    "bos_token": AddedToken("<s>", normalized=False),
    "eos_token": AddedToken("</s>", normalized=False),
    "unk_token": AddedToken("<unk>", normalized=False),
}
_BART_TOKENS = {
    **_LLAMA_TOKENS,
    "cls_token": AddedToken("<s>", normalized=False),
    "sep_token": AddedToken("</s>", normalized=False),
    "pad_token": AddedToken("<pad>", normalized=False),
    "mask_token": AddedToken("<mask>", lstrip=True, normalized=False),
}
_BERT_TOKENS = {
    role: AddedToken(text, normalized=False)
    for role, text in {
        "unk_token": "[UNK]",
        "sep_token": "[SEP]",
        "pad_token": "[PAD]",
        "cls_token": "[CLS]",
        "mask_token": "[MASK]",
    }.items()
}
"""The default special tokens of each tokenizer, by role."""


def read_tokenizers(directory: Path, model_type: str) -> Pair:
    """The tokenizers of a folder whose model has this `model_type`."""
    if (directory / "tokenizer.json").is_file():
        tokenizer = _read_tokenizer_json(directory / "tokenizer.json")
        if model_type == "bert":
            _override_normalizer(tokenizer, _read_config(directory))
        return tokenizer, None
    if model_type == "marian":
        return _marian(directory)
    if _complete(directory, "merges.txt", "vocab.json"):
        return _byte_level(directory, add_bos_eos=model_type == "bart"), None
    if (directory / "tokenizer.model").is_file():
        return _sentencepiece(directory), None
    if model_type == "bert" and (directory / "vocab.txt").is_file():
        return _wordpiece(directory), None
    return None, None


def special_ids(directory: Path, tokenizer: Tokenizer) -> dict[str, int]:
    """The ids of BERT's special tokens by config key, without those that the vocabulary lacks."""
    tokens = _special_tokens(_read_config(directory), _BERT_TOKENS)
    ids = {
        f"{role}_id": tokenizer.token_to_id(str(tokens[role].content)) for role in _BERT_TOKENS if role != "unk_token"
    }
    return {key: token_id for key, token_id in ids.items() if token_id is not None}


def _read_tokenizer_json(path: Path) -> Tokenizer:
    tokenizer = read_tokenizer(path)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def _complete(directory: Path, *names: str) -> bool:
    """Whether all of these files exist. It is an error if only some of them do."""
    present = [name for name in names if (directory / name).is_file()]
    if present and len(present) < len(names):
        missing = next(name for name in names if name not in present)
        raise UserError(
            f"{directory} has {present[0]} but no {missing}, which belongs to the same tokenizer; "
            "download it too, or remove the other to import the model without a tokenizer."
        )
    return bool(present)


def _marian(directory: Path) -> Pair:
    """One tokenizer per side, or a single one if both are equal."""
    if not _complete(directory, "source.spm", "target.spm", "vocab.json"):
        return None, None
    paths = {side: directory / f"{side}.spm" for side in ("source", "target")}
    vocabularies = {"source": directory / "vocab.json", "target": directory / "target_vocab.json"}
    if not vocabularies["target"].is_file():
        vocabularies["target"] = vocabularies["source"]
    source, target = (
        _marian_side(read_sentencepiece(paths[side]), vocabularies[side]) for side in ("source", "target")
    )
    return (source, None) if source.to_str() == target.to_str() else (source, target)


def _marian_side(model: SentencePieceModel, vocabulary: Path) -> Tokenizer:
    """The tokenizer of one side: the pieces of its SentencePiece model, with the ids of a vocab.json for both sides.

    As in `MarianTokenizer`, </s> ends every text, a language code such as >>fra<< is one token, and text that this
    side's model does not know becomes <unk>, unless it is a token of the other side. There are three differences,
    since a `tokenizers.Tokenizer` only produces pieces that have an id:

    - A piece without an id in vocab.json is split into smaller ones that have one; Marian's gives <unk>.
    - A run of unknown characters that is not in vocab.json is split into those of its parts that are; Marian's gives
      a single <unk>.
    - A language code is recognized anywhere in a text; Marian's recognizes it only at the start.
    """
    if model.is_bpe:
        raise UserError(
            f"{model.path} is a BPE model, but only unigram models can be imported for Marian; "
            "remove the .spm files to import the model without a tokenizer."
        )
    ids = _read_ids(vocabulary)
    eos, unk = (_require_id(ids, text, vocabulary) for text in ("</s>", "<unk>"))
    tokens = sorted(ids, key=lambda text: ids[text])
    if ids[tokens[-1]] != len(ids) - 1:
        raise UserError(f"{vocabulary} lacks some ids below {ids[tokens[-1]]}; download it again.")
    codes = [text for text in tokens if text.startswith(">>") and text.endswith("<<")]
    scores = _marian_scores(model, tokens, {"</s>", "<unk>", "<pad>", *codes})
    tokenizer = Tokenizer(models.Unigram(scores, unk_id=unk, byte_fallback=model.byte_fallback))
    add_normalizer_and_decoder(tokenizer, model, has_hidden_tokens=True)
    tokenizer.add_special_tokens([text for text in ("</s>", "<unk>", "<pad>") if text in ids])
    tokenizer.add_tokens([AddedToken(code, normalized=False) for code in codes])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A $B </s>", special_tokens=[("</s>", eos)]
    )
    return tokenizer


def _marian_scores(model: SentencePieceModel, tokens: list[str], special: set[str]) -> list[tuple[str, float]]:
    """Every token of a vocab.json with its unigram score on one side.

    Tokens of the other side only are hidden if this side knows any of their characters, since it would segment them
    differently; the others match characters that this side does not know.
    """
    scores, min_score = unigram_scores(model)
    known = {character for text in scores for character in text}
    hidden = {text for text in tokens if text not in scores and text not in special and known & set(text)}
    return [(hide(text) if text in hidden else text, scores.get(text, min_score)) for text in tokens]


def _byte_level(directory: Path, add_bos_eos: bool) -> Tokenizer:
    """GPT-2's byte-level BPE; with `add_bos_eos` every text is between <s> and </s>, as in BART."""
    ids = _read_ids(directory / "vocab.json")
    merges = directory / "merges.txt"
    try:
        model = models.BPE.from_file(str(directory / "vocab.json"), str(merges))
    except Exception as error:  # the library raises plain Exception
        raise UserError(f"{merges} does not match vocab.json ({error}); download both again.") from None
    config = _read_config(directory)
    add_prefix_space = config.get("add_prefix_space") is True
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    tokenizer.decoder = decoders.ByteLevel()
    special = _special_tokens(config, _BART_TOKENS if add_bos_eos else _GPT2_TOKENS)
    _add_tokens(tokenizer, directory, config, special)
    if add_bos_eos:
        texts = [str(special[role].content) for role in ("sep_token", "cls_token")]
        sep, cls = ((text, _require_id(ids, text, directory / "vocab.json")) for text in texts)
        tokenizer.post_processor = processors.RobertaProcessing(
            sep, cls, trim_offsets=True, add_prefix_space=add_prefix_space
        )
    else:
        _set_bos_eos(tokenizer, config, special, bos=False)
    return tokenizer


def _sentencepiece(directory: Path) -> Tokenizer:
    """The tokenizer of Llama 1 and 2: the ids are those of the SentencePiece file, and <s> starts every text."""
    tokenizer = to_tokenizer(read_sentencepiece(directory / "tokenizer.model"))
    config = _read_config(directory)
    special = _special_tokens(config, _LLAMA_TOKENS)
    _add_tokens(tokenizer, directory, config, special)
    _set_bos_eos(tokenizer, config, special, bos=True)
    return tokenizer


def _wordpiece(directory: Path) -> Tokenizer:
    """BERT's tokenizer: words are split into the longest known pieces; [CLS] precedes a text and [SEP] follows it.

    In a pair, the second text and its [SEP] have token type 1.
    """
    path = directory / "vocab.txt"
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}); download it again.") from None
    ids = {text: token_id for token_id, text in enumerate(lines[:-1] if lines[-1] == "" else lines)}
    config = _read_config(directory)
    special = _special_tokens(config, _BERT_TOKENS)
    unk, cls, sep = (str(special[role].content) for role in ("unk_token", "cls_token", "sep_token"))
    required_ids = {text: _require_id(ids, text, path) for text in (unk, cls, sep)}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token=unk))
    tokenizer.normalizer = _bert_normalizer(config, {})
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    _add_tokens(tokenizer, directory, config, special)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{cls}:0 $A:0 {sep}:0",
        pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1",
        special_tokens=[(text, required_ids[text]) for text in (cls, sep)],
    )
    return tokenizer


def _override_normalizer(tokenizer: Tokenizer, config: dict[str, Any]) -> None:
    """Let BERT's normalization in tokenizer_config.json override that in tokenizer.json, as transformers does.

    The exception is a `tokenizer_class` that reads tokenizer.json without changes.
    """
    generic = config.get("tokenizer_class") in ("PreTrainedTokenizerFast", "TokenizersBackend")
    if isinstance(tokenizer.normalizer, normalizers.BertNormalizer) and not generic:
        tokenizer.normalizer = _bert_normalizer(config, json.loads(tokenizer.to_str())["normalizer"])


def _bert_normalizer(config: dict[str, Any], stored: dict[str, Any]) -> normalizers.Normalizer:
    """From tokenizer_config.json; missing keys are as `stored` in tokenizer.json, or transformers' defaults."""
    lowercase, strip_accents, chinese = (
        config.get(key, stored.get(name, default))
        for key, name, default in (
            ("do_lower_case", "lowercase", True),
            ("strip_accents", "strip_accents", None),  # None: as lowercase
            ("tokenize_chinese_chars", "handle_chinese_chars", True),
        )
    )
    return normalizers.BertNormalizer(
        clean_text=stored.get("clean_text") is not False,
        handle_chinese_chars=chinese is not False,
        strip_accents=strip_accents if isinstance(strip_accents, bool) else None,
        lowercase=lowercase is not False,
    )


def _read_config(directory: Path) -> dict[str, Any]:
    """tokenizer_config.json merged over special_tokens_map.json."""
    config: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (directory / name).is_file():
            config |= read_json(directory / name)
    return config


def _special_tokens(config: dict[str, Any], defaults: dict[str, AddedToken]) -> dict[str, AddedToken]:
    """The special tokens by role: those that the config names, and the defaults for the others."""
    special = dict(defaults)
    for role in (*defaults, "pad_token"):
        token = _added_token(config.get(role))
        if token is not None:
            special[role] = token
    additional = config.get("additional_special_tokens")
    for index, value in enumerate(additional if isinstance(additional, list) else []):
        token = _added_token(value)
        if token is not None:
            special[f"additional {index}"] = token
    return special


def _added_token(value: object, special: bool = True) -> AddedToken | None:
    """A token from its text, or from a table with its text and flags."""
    table = value if isinstance(value, dict) else {"content": value}
    text = table.get("content")
    if not isinstance(text, str) or not text:
        return None
    flags = {name: table.get(name) is True for name in ("lstrip", "rstrip", "single_word")}
    return AddedToken(text, normalized=False, special=special, **flags)


def _add_tokens(tokenizer: Tokenizer, directory: Path, config: dict[str, Any], special: dict[str, AddedToken]) -> None:
    """Add the tokens beyond the vocabulary, with the ids that the folder gives them, and mark the special ones.

    A special token without an id has no embedding in the model either, so it is omitted.
    """
    added: dict[int, AddedToken | None] = {}
    if (directory / "added_tokens.json").is_file():
        ids = _read_ids(directory / "added_tokens.json")
        added |= {token_id: _added_token(text, special=False) for text, token_id in ids.items()}
    table = config.get("added_tokens_decoder")
    for key, entry in table.items() if isinstance(table, dict) else ():
        if key.isdecimal() and isinstance(entry, dict):
            added[int(key)] = _added_token(entry, special=entry.get("special") is True)
    by_text = {str(token.content): token for token in special.values()}
    for token_id, token in sorted(added.items()):
        if token is not None:
            text = str(token.content)
            tokenizer.add_tokens([by_text.get(text, token)])
            if tokenizer.token_to_id(text) != token_id:
                raise UserError(
                    f"{directory}: the added token {text!r} should have the id {token_id}, but after the vocabulary "
                    f"its id is {tokenizer.token_to_id(text)}; download the tokenizer's files again."
                )
    tokenizer.add_special_tokens([token for text, token in by_text.items() if tokenizer.token_to_id(text) is not None])


def _set_bos_eos(tokenizer: Tokenizer, config: dict[str, Any], special: dict[str, AddedToken], bos: bool) -> None:
    """Add BOS and EOS to every text if the config says so; `bos` is the default of `add_bos_token`."""
    enabled = {"bos_token": config.get("add_bos_token", bos) is True, "eos_token": config.get("add_eos_token") is True}
    texts = {role: str(special[role].content) for role, is_enabled in enabled.items() if is_enabled}
    ids = {text: token_id for text in texts.values() if (token_id := tokenizer.token_to_id(text)) is not None}
    before, after = ([text for role, text in texts.items() if role == each and text in ids] for each in enabled)
    if ids:
        single, pair = ([*before, text, *after] for text in ("$A", "$B"))
        tokenizer.post_processor = processors.TemplateProcessing(
            single=single, pair=single + pair, special_tokens=list(ids.items())
        )


def _read_ids(path: Path) -> dict[str, int]:
    """A vocabulary: tokens with their ids, which must be unique."""
    ids = read_json(path)
    if not ids or not all(type(token_id) is int and token_id >= 0 for token_id in ids.values()):
        raise UserError(f"{path} should map every token to an id; download it again.")
    if len(set(ids.values())) < len(ids):
        raise UserError(f"{path} gives two tokens the same id; download it again.")
    return ids


def _require_id(ids: dict[str, int], text: str, path: Path) -> int:
    if text not in ids:
        raise UserError(f"{path} has no {text}, which this architecture needs; download it again.")
    return ids[text]
