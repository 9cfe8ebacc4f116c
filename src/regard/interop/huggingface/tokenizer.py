"""The tokenizer of a Hugging Face folder, whichever of its forms it has there, as one `tokenizers.Tokenizer`.

    tokenizer.json                          taken as it is
    source.spm + target.spm + vocab.json    Marian: a tokenizer for each side
    vocab.json + merges.txt                 byte-level BPE: GPT-2, BART
    tokenizer.model                         sentencepiece: Llama, Mistral
    vocab.txt                               WordPiece: BERT

How long a text may be, and what short ones are filled up with, is asked for with each text in their library, whatever
tokenizer.json says of it; so it is taken out.

A folder with none of these has no tokenizer; one with half a set is refused.
"""

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from regard.errors import UserError
from regard.interop.huggingface.pieces import Pieces, as_tokenizer, dress, hide, read_pieces, unigram_scores
from regard.interop.huggingface.weights import read_json

Pair = tuple[Tokenizer | None, Tokenizer | None]
"""The source's tokenizer (or the only one), and the target's where it is another."""

_GPT2_WORDS = dict.fromkeys(("bos_token", "eos_token", "unk_token"), AddedToken("<|endoftext|>", normalized=False))
_LLAMA_WORDS = {
    "bos_token": AddedToken("<s>", normalized=False),
    "eos_token": AddedToken("</s>", normalized=False),
    "unk_token": AddedToken("<unk>", normalized=False),
}
_BART_WORDS = {
    **_LLAMA_WORDS,
    "cls_token": AddedToken("<s>", normalized=False),
    "sep_token": AddedToken("</s>", normalized=False),
    "pad_token": AddedToken("<pad>", normalized=False),
    "mask_token": AddedToken("<mask>", lstrip=True, normalized=False),
}
_BERT_WORDS = {
    role: AddedToken(text, normalized=False)
    for role, text in {
        "unk_token": "[UNK]",
        "sep_token": "[SEP]",
        "pad_token": "[PAD]",
        "cls_token": "[CLS]",
        "mask_token": "[MASK]",
    }.items()
}
"""Special words where the folder does not say otherwise, by the part they play."""


def read_tokenizers(directory: Path, kind: str) -> Pair:
    """The tokenizers of a folder with a model of this `kind` (their model_type)."""
    if (directory / "tokenizer.json").is_file():
        tokenizer = _read_as_it_is(directory / "tokenizer.json")
        if kind == "bert":
            _let_settings_decide(tokenizer, _given(directory))
        return tokenizer, None
    if kind == "marian":
        return _marian(directory)
    if _complete(directory, "merges.txt", "vocab.json"):
        return _byte_level(directory, wrapped=kind == "bart"), None
    if (directory / "tokenizer.model").is_file():
        return _sentencepiece(directory), None
    if kind == "bert" and (directory / "vocab.txt").is_file():
        return _word_pieces(directory), None
    return None, None


def special_ids(directory: Path, tokenizer: Tokenizer) -> dict[str, int]:
    """The ids of BERT's special words, by their keys in settings; those the vocabulary lacks are left out."""
    words = _special(_given(directory), _BERT_WORDS)
    found = {
        f"{role}_id": tokenizer.token_to_id(str(words[role].content)) for role in _BERT_WORDS if role != "unk_token"
    }
    return {key: number for key, number in found.items() if number is not None}


def _read_as_it_is(path: Path) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception
        raise UserError(f"{path} is not a tokenizer that can be read ({error}); fetch it again.") from None
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def _complete(directory: Path, *names: str) -> bool:
    """Whether all of these files are there (or none); some of them only is an error."""
    there = [name for name in names if (directory / name).is_file()]
    if there and len(there) < len(names):
        missing = next(name for name in names if name not in there)
        raise UserError(
            f"{directory} has {there[0]} but no {missing}, which belongs to the same tokenizer; "
            "fetch it too, or remove the other to import the model without a tokenizer."
        )
    return bool(there)


def _marian(directory: Path) -> Pair:
    """A tokenizer for each side; one for both if the two are the same."""
    if not _complete(directory, "source.spm", "target.spm", "vocab.json"):
        return None, None
    paths = {side: directory / f"{side}.spm" for side in ("source", "target")}
    vocabularies = {"source": directory / "vocab.json", "target": directory / "target_vocab.json"}
    if not vocabularies["target"].is_file():
        vocabularies["target"] = vocabularies["source"]
    source, target = (_marian_side(read_pieces(paths[side]), vocabularies[side]) for side in ("source", "target"))
    return (source, None) if source.to_str() == target.to_str() else (source, target)


def _marian_side(pieces: Pieces, vocabulary: Path) -> Tokenizer:
    """Text is cut into the pieces of a sentencepiece model, whose ids stand in a vocab.json for both sides.

    As in their own tokenizer, </s> ends every text, a language code such as >>fra<< is one token, and text that this
    side's model does not know becomes <unk>, unless it is a word of the other side. Where it differs, it is because a
    tokenizer can give only pieces that have an id:

    - A piece without an id in vocab.json is cut into smaller ones that have one; theirs gives <unk>.
    - A run of unknown characters that is no word in vocab.json is cut into those of its parts that are; theirs gives
      one <unk> for all of it.
    - A language code is found anywhere in a text; theirs looks for it at the start alone.
    """
    if pieces.merges_pairs:
        raise UserError(
            f"{pieces.path} is a BPE model, and only unigram models can be imported for Marian; "
            "remove the .spm files to import the model without a tokenizer."
        )
    ids = _read_ids(vocabulary)
    end, unknown = (_need(ids, text, vocabulary) for text in ("</s>", "<unk>"))
    every = sorted(ids, key=lambda text: ids[text])
    if ids[every[-1]] != len(ids) - 1:
        raise UserError(f"{vocabulary} leaves out some ids below {ids[every[-1]]}; fetch it again.")
    codes = [text for text in every if text.startswith(">>") and text.endswith("<<")]
    table = _marian_table(pieces, every, {"</s>", "<unk>", "<pad>", *codes})
    tokenizer = Tokenizer(models.Unigram(table, unk_id=unknown, byte_fallback=pieces.bytes_for_unknown))
    dress(tokenizer, pieces, hidden=True)
    tokenizer.add_special_tokens([text for text in ("</s>", "<unk>", "<pad>") if text in ids])
    tokenizer.add_tokens([AddedToken(code, normalized=False) for code in codes])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A $B </s>", special_tokens=[("</s>", end)]
    )
    return tokenizer


def _marian_table(pieces: Pieces, every: list[str], special: set[str]) -> list[tuple[str, float]]:
    """Every word of a vocab.json with its score for text of one side.

    Words of the other side alone are hidden from text if this side knows any of their characters, for it would cut them
    its own way; the rest are what unknown characters become.
    """
    scores, never = unigram_scores(pieces)
    known = {character for text in scores for character in text}
    hidden = {text for text in every if text not in scores and text not in special and known & set(text)}
    return [(hide(text) if text in hidden else text, scores.get(text, never)) for text in every]


def _byte_level(directory: Path, wrapped: bool) -> Tokenizer:
    """GPT-2's tokenizer: pairs of bytes. `wrapped`: a text stands between <s> and </s>, as BART wants it."""
    ids = _read_ids(directory / "vocab.json")
    merges = directory / "merges.txt"
    try:
        model = models.BPE.from_file(str(directory / "vocab.json"), str(merges))
    except Exception as error:  # the library raises plain Exception
        raise UserError(f"{merges} does not fit vocab.json ({error}); fetch both again.") from None
    given = _given(directory)
    prefix = given.get("add_prefix_space") is True
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    tokenizer.decoder = decoders.ByteLevel()
    special = _special(given, _BART_WORDS if wrapped else _GPT2_WORDS)
    _add(tokenizer, directory, given, special)
    if wrapped:
        ends = {role: str(special[role].content) for role in ("sep_token", "cls_token")}
        end, start = ((text, _need(ids, text, directory / "vocab.json")) for text in ends.values())
        tokenizer.post_processor = processors.RobertaProcessing(end, start, trim_offsets=True, add_prefix_space=prefix)
    else:
        _frame(tokenizer, given, special, start=False)
    return tokenizer


def _sentencepiece(directory: Path) -> Tokenizer:
    """Llama's first tokenizers: the ids are those of the sentencepiece file, <s> begins every text."""
    tokenizer = as_tokenizer(read_pieces(directory / "tokenizer.model"))
    given = _given(directory)
    special = _special(given, _LLAMA_WORDS)
    _add(tokenizer, directory, given, special)
    _frame(tokenizer, given, special, start=True)
    return tokenizer


def _word_pieces(directory: Path) -> Tokenizer:
    """BERT's tokenizer: words are cut into the longest pieces there are, [CLS] stands before a text and [SEP] behind.

    Of a pair the second text and the [SEP] behind it belong to the second segment.
    """
    path = directory / "vocab.txt"
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}); fetch it again from where the model came from.") from None
    ids = {text: number for number, text in enumerate(lines[:-1] if lines[-1] == "" else lines)}
    given = _given(directory)
    special = _special(given, _BERT_WORDS)
    unknown, start, end = (str(special[role].content) for role in ("unk_token", "cls_token", "sep_token"))
    numbers = {text: _need(ids, text, path) for text in (unknown, start, end)}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token=unknown))
    tokenizer.normalizer = _bert_normalizer(given, {})
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    _add(tokenizer, directory, given, special)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{start}:0 $A:0 {end}:0",
        pair=f"{start}:0 $A:0 {end}:0 $B:1 {end}:1",
        special_tokens=[(text, numbers[text]) for text in (start, end)],
    )
    return tokenizer


def _let_settings_decide(tokenizer: Tokenizer, given: dict[str, Any]) -> None:
    """Where tokenizer_config.json says otherwise than tokenizer.json how BERT's text is cleaned, it is the one read,
    unless it names a class that takes tokenizer.json as it is.
    """
    plain = given.get("tokenizer_class") in ("PreTrainedTokenizerFast", "TokenizersBackend")
    if isinstance(tokenizer.normalizer, normalizers.BertNormalizer) and not plain:
        tokenizer.normalizer = _bert_normalizer(given, json.loads(tokenizer.to_str())["normalizer"])


def _bert_normalizer(given: dict[str, Any], noted: dict[str, Any]) -> normalizers.Normalizer:
    """By the folder's settings; what they leave out as `noted` in a tokenizer.json, or as is usual."""
    lower, accents, chinese = (
        given.get(key, noted.get(name, usual))
        for key, name, usual in (
            ("do_lower_case", "lowercase", True),
            ("strip_accents", "strip_accents", None),  # where it is not said: with lower case
            ("tokenize_chinese_chars", "handle_chinese_chars", True),
        )
    )
    return normalizers.BertNormalizer(
        clean_text=noted.get("clean_text") is not False,
        handle_chinese_chars=chinese is not False,
        strip_accents=accents if isinstance(accents, bool) else None,
        lowercase=lower is not False,
    )


def _given(directory: Path) -> dict[str, Any]:
    """What the folder says about its tokenizer, in whichever of two files."""
    given: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (directory / name).is_file():
            given |= read_json(directory / name)
    return given


def _special(given: dict[str, Any], usual: dict[str, AddedToken]) -> dict[str, AddedToken]:
    """The special words by the part they play: those the folder names, the usual ones for the rest."""
    special = dict(usual)
    for role in (*usual, "pad_token"):
        token = _token(given.get(role))
        if token is not None:
            special[role] = token
    others = given.get("additional_special_tokens")
    for number, value in enumerate(others if isinstance(others, list) else []):
        token = _token(value)
        if token is not None:
            special[f"other {number}"] = token
    return special


def _token(value: object, special: bool = True) -> AddedToken | None:
    """A word from its text, or from a table with its text and how it is found."""
    table = value if isinstance(value, dict) else {"content": value}
    text = table.get("content")
    if not isinstance(text, str) or not text:
        return None
    flags = {name: table.get(name) is True for name in ("lstrip", "rstrip", "single_word")}
    return AddedToken(text, normalized=False, special=special, **flags)


def _add(tokenizer: Tokenizer, directory: Path, given: dict[str, Any], special: dict[str, AddedToken]) -> None:
    """Make special words known as such, and add those that came after the vocabulary, under the ids the folder gives.

    A special word without an id has none in the model either, and is left out.
    """
    listed: dict[int, AddedToken | None] = {}
    if (directory / "added_tokens.json").is_file():
        ids = _read_ids(directory / "added_tokens.json")
        listed |= {number: _token(text, special=False) for text, number in ids.items()}
    table = given.get("added_tokens_decoder")
    for number, entry in table.items() if isinstance(table, dict) else ():
        if number.isdecimal() and isinstance(entry, dict):
            listed[int(number)] = _token(entry, special=entry.get("special") is True)
    named = {str(token.content): token for token in special.values()}
    for number, token in sorted(listed.items()):
        if token is not None:
            text = str(token.content)
            tokenizer.add_tokens([named.get(text, token)])
            if tokenizer.token_to_id(text) != number:
                raise UserError(
                    f"{directory}: the added token {text!r} should have the id {number}, but the vocabulary leaves it "
                    f"{tokenizer.token_to_id(text)}; fetch the tokenizer's files again."
                )
    tokenizer.add_special_tokens([token for text, token in named.items() if tokenizer.token_to_id(text) is not None])


def _frame(tokenizer: Tokenizer, given: dict[str, Any], special: dict[str, AddedToken], start: bool) -> None:
    """What is put around every text: a start and an end, each if the folder says so (`start` if it does not say)."""
    wanted = {"bos_token": given.get("add_bos_token", start) is True, "eos_token": given.get("add_eos_token") is True}
    texts = {role: str(special[role].content) for role, asked in wanted.items() if asked}
    ids = {text: number for text in texts.values() if (number := tokenizer.token_to_id(text)) is not None}
    before, after = ([text for role, text in texts.items() if role == side and text in ids] for side in wanted)
    if ids:
        single, pair = ([*before, part, *after] for part in ("$A", "$B"))
        tokenizer.post_processor = processors.TemplateProcessing(
            single=single, pair=single + pair, special_tokens=list(ids.items())
        )


def _read_ids(path: Path) -> dict[str, int]:
    """A vocabulary: every word with its id, no id twice."""
    ids = read_json(path)
    if not ids or not all(type(number) is int and number >= 0 for number in ids.values()):
        raise UserError(f"{path} should give every word an id; fetch it again from where the model came from.")
    if len(set(ids.values())) < len(ids):
        raise UserError(f"{path} gives two words the same id; fetch it again from where the model came from.")
    return ids


def _need(ids: dict[str, int], text: str, path: Path) -> int:
    if text not in ids:
        raise UserError(f"{path} has no {text}, which this kind of model needs; fetch it again.")
    return ids[text]
