"""Imported tokenizers give the ids of the originals, on texts of many kinds."""

import json

import pytest
from tokenizers import ByteLevelBPETokenizer, Tokenizer
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    GPT2Tokenizer,
    MarianConfig,
    MarianMTModel,
    MarianTokenizer,
    RobertaTokenizer,
)

import regard
from regard.errors import UserError
from regard.interop import import_huggingface
from regard.interop.huggingface.tokenizer import read_tokenizers
from tests.interop.huggingface.texts import ENGLISH, TEXTS, TURKISH, train_sentencepiece


@pytest.fixture
def byte_level(tmp_path):
    """A folder with vocab.json and merges.txt, whose first ids are special tokens."""

    def train(*special):
        bpe = ByteLevelBPETokenizer()
        bpe.train_from_iterator(
            (ENGLISH + TURKISH) * 5, vocab_size=400, special_tokens=list(special), show_progress=False
        )
        directory = tmp_path / "folder"
        directory.mkdir()
        bpe.save_model(str(directory))
        return directory

    return train


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("prefix", [False, True])
def test_gpt2_ids_equal_transformers(text, prefix, byte_level):
    directory = byte_level("<|endoftext|>")
    (directory / "tokenizer_config.json").write_text(json.dumps({"add_prefix_space": prefix}))
    theirs = GPT2Tokenizer.from_pretrained(directory)
    ours, _ = read_tokenizers(directory, "gpt2")
    assert ours.encode(text).ids == theirs(text)["input_ids"]
    assert ours.decode(ours.encode(text).ids) == theirs.decode(theirs(text)["input_ids"])


@pytest.mark.parametrize("text", TEXTS)
def test_bart_ids_equal_transformers(text, byte_level):
    directory = byte_level("<s>", "<pad>", "</s>", "<unk>", "<mask>")
    theirs = RobertaTokenizer.from_pretrained(directory)
    ours, _ = read_tokenizers(directory, "bart")
    expected = theirs(text)["input_ids"]
    assert ours.encode(text).ids == expected
    assert ours.decode(expected) == theirs.decode(expected, skip_special_tokens=True)


def test_added_tokens_have_the_ids_of_the_folder(byte_level):
    directory = byte_level("<|endoftext|>")
    size = len(json.loads((directory / "vocab.json").read_text()))
    (directory / "added_tokens.json").write_text(json.dumps({"<one>": size, "<two>": size + 1}))
    ours, _ = read_tokenizers(directory, "gpt2")
    assert ours.encode("a<two>b<one>", add_special_tokens=False).ids[1::2] == [size + 1, size]


def test_added_token_with_a_used_id_is_refused(byte_level):
    directory = byte_level("<|endoftext|>")
    (directory / "added_tokens.json").write_text(json.dumps({"<one>": 5}))
    with pytest.raises(UserError, match="the added token '<one>' should have the id 5"):
        read_tokenizers(directory, "gpt2")


def test_bos_is_added_if_the_tokenizer_config_says_so(byte_level):
    directory = byte_level("<|endoftext|>")
    (directory / "tokenizer_config.json").write_text(json.dumps({"add_bos_token": True}))
    ours, _ = read_tokenizers(directory, "gpt2")
    assert ours.encode("the cat").tokens[0] == "<|endoftext|>"


def test_special_tokens_are_read_from_the_folder(byte_level):
    directory = byte_level("<begin>", "<end>", "<pad>", "<unk>", "<mask>")
    names = {"bos_token": "<begin>", "cls_token": "<begin>", "eos_token": "<end>", "sep_token": {"content": "<end>"}}
    (directory / "special_tokens_map.json").write_text(json.dumps(names))
    ours, _ = read_tokenizers(directory, "bart")
    encoded = ours.encode("the cat")
    assert (encoded.tokens[0], encoded.tokens[-1]) == ("<begin>", "<end>")
    assert ours.decode(encoded.ids) == "the cat"


# Marian


def marian_folder(directory, *, separate=False, without=(), codes=(), **options):
    """Two sentencepiece models, and one joint or two separate vocabularies with the ids of their pieces."""
    from sentencepiece import SentencePieceProcessor

    directory.mkdir()
    texts_of = {"source": ENGLISH, "target": TURKISH}
    pieces = {}
    for side, texts in texts_of.items():
        train_sentencepiece(directory / f"{side}.spm", texts, **options)
        model = SentencePieceProcessor(model_file=str(directory / f"{side}.spm"))
        pieces[side] = [model.id_to_piece(number) for number in range(3, len(model))]
    # Marian orders pieces by frequency, unlike sentencepiece.
    vocabularies = {
        side: sorted(set(side_pieces) - set(without), key=lambda text: text[::-1])
        for side, side_pieces in pieces.items()
    }
    joint = sorted({*vocabularies["source"], *vocabularies["target"]}, key=lambda text: text[::-1])
    for name, side in {"vocab.json": "source", "target_vocab.json": "target"}.items():
        entries = ["</s>", "<unk>", *codes, *(vocabularies[side] if separate else joint), "<pad>"]
        if separate or side == "source":
            (directory / name).write_text(json.dumps({text: number for number, text in enumerate(entries)}))
    if separate:
        (directory / "tokenizer_config.json").write_text(json.dumps({"separate_vocabs": True}))
    return directory


@pytest.fixture(scope="module")
def marian_folders(tmp_path_factory):
    """Folders of several kinds."""
    directory = tmp_path_factory.mktemp("marian")
    return {
        "joint": marian_folder(directory / "joint"),
        "separate": marian_folder(directory / "separate", separate=True),
        "language codes": marian_folder(directory / "codes", codes=(">>tur<<", ">>deu<<")),
        "no normalization": marian_folder(
            directory / "identity", normalization_rule_name="identity", remove_extra_whitespaces=False
        ),
        "no dummy prefix": marian_folder(directory / "start", add_dummy_prefix=False),
    }


def hf_marian(directory):
    files = [str(directory / name) for name in ("source.spm", "target.spm", "vocab.json")]
    separate = (directory / "target_vocab.json").is_file()
    target = str(directory / "target_vocab.json") if separate else None
    return MarianTokenizer(*files, target_vocab_file=target, separate_vocabs=separate)


sacremoses = pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses:UserWarning")

# Without runs of characters that only the other side's model has: these differ by design (see the test below).
SOURCE_TEXTS = [*(text for text in TEXTS if "ığ" not in text), *ENGLISH, "ş", "a ş and a çi", "Üsküdar"]
TARGET_TEXTS = [*TEXTS, *TURKISH, "Zürich", "é", "façade W"]


@sacremoses
@pytest.mark.parametrize("kind", ["joint", "separate", "language codes", "no normalization", "no dummy prefix"])
def test_marian_ids_equal_transformers(kind, marian_folders):
    theirs = hf_marian(marian_folders[kind])
    source, target = read_tokenizers(marian_folders[kind], "marian")
    for text in SOURCE_TEXTS:
        assert source.encode(text).ids == theirs(text)["input_ids"], text
    for text in TARGET_TEXTS:
        assert target.encode(text).ids == theirs(text_target=text)["input_ids"], text


@sacremoses
def test_marian_decoding_equals_transformers(marian_folders):
    theirs = hf_marian(marian_folders["joint"])
    _, target = read_tokenizers(marian_folders["joint"], "marian")
    for text in TURKISH:
        token_ids = theirs(text_target=text)["input_ids"]
        assert target.decode(token_ids) == theirs.decode(token_ids, skip_special_tokens=True) == text


@sacremoses
@pytest.mark.parametrize("text", [">>tur<< The cat sat.", ">>deu<<The cat", ">>tur<<"])
def test_language_code_is_one_token(text, marian_folders):
    theirs = hf_marian(marian_folders["language codes"])
    source, _ = read_tokenizers(marian_folders["language codes"], "marian")
    assert source.encode(text).ids == theirs(text)["input_ids"]


def test_piece_without_an_id_is_split_into_smaller_pieces(tmp_path):
    """Transformers gives <unk> here, which a `tokenizers` model cannot do; known pieces carry more information."""
    directory = marian_folder(tmp_path / "folder", without=("▁the",))
    source, _ = read_tokenizers(directory, "marian")
    tokens = source.encode("the cat").tokens
    assert "<unk>" not in tokens
    assert "".join(tokens) == "▁the▁cat</s>"


def test_characters_of_only_the_other_side_are_separate_tokens(marian_folders):
    """Transformers gives a single <unk> here; a `tokenizers` model gives the ids of the characters."""
    source, _ = read_tokenizers(marian_folders["joint"], "marian")
    assert source.encode("ığş").tokens == ["▁", "ı", "ğ", "ş", "</s>"]


def test_tokens_of_the_other_side_can_be_decoded(marian_folders):
    source, target = read_tokenizers(marian_folders["joint"], "marian")
    token_ids = [token for token in target.encode("Kedi fareyi yedi").ids if token > 1]
    assert source.decode(token_ids) == "Kedi fareyi yedi"


def test_equal_sides_share_one_tokenizer(marian_folders, tmp_path):
    directory = tmp_path / "folder"
    directory.mkdir()
    for name in ("source.spm", "vocab.json"):
        (directory / name).write_bytes((marian_folders["joint"] / name).read_bytes())
    (directory / "target.spm").write_bytes((directory / "source.spm").read_bytes())
    source, target = read_tokenizers(directory, "marian")
    assert source is not None
    assert target is None


def copy_files(folder, directory):
    for path in folder.iterdir():
        (directory / path.name).write_bytes(path.read_bytes())


def test_imported_translator_has_one_tokenizer_per_side(marian_folders, save_hf, tmp_path):
    size = len(json.loads((marian_folders["joint"] / "vocab.json").read_text()))
    config = MarianConfig(
        vocab_size=size,
        d_model=8,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=8,
        decoder_ffn_dim=8,
        pad_token_id=size - 1,
        decoder_start_token_id=size - 1,
    )
    directory = save_hf(MarianMTModel(config))
    copy_files(marian_folders["joint"], directory)
    assert import_huggingface(directory, tmp_path / "ours").endswith("with its tokenizer.")
    ours = regard.load(tmp_path / "ours")
    source = ours.loaded.tokenizer.encode("The cat sat.")
    target = ours.loaded.target_tokenizer.encode("Kedi fareyi yedi.")
    assert ours.logits([source.ids], [target.ids]).shape == (1, len(target.ids), size)


# Folders


def test_tokenizer_json_is_used_unchanged(byte_level):
    directory = byte_level("<|endoftext|>")
    ours, _ = read_tokenizers(directory, "gpt2")
    ours.add_tokens(["entirely new"])
    ours.save(str(directory / "tokenizer.json"))
    (directory / "merges.txt").unlink()
    again, _ = read_tokenizers(directory, "gpt2")
    assert again.to_str() == Tokenizer.from_file(str(directory / "tokenizer.json")).to_str()
    assert again.encode("entirely new").tokens == ["entirely new"]


@pytest.mark.parametrize("kind", ["marian", "bart", "gpt2", "llama"])
def test_folder_without_tokenizer_files(kind, tmp_path):
    assert read_tokenizers(tmp_path, kind) == (None, None)


def write(name, content):
    def corrupt(directory):
        (directory / name).write_bytes(content)

    return corrupt


def remove(*names):
    def corrupt(directory):
        for name in names:
            (directory / name).unlink()

    return corrupt


INVALID = {
    "invalid tokenizer.json": ("gpt2", write("tokenizer.json", b"{}"), "tokenizer.json is not a valid tokenizer"),
    "no merges": ("gpt2", remove("merges.txt"), "has vocab.json but no merges.txt"),
    "no vocabulary": ("bart", remove("vocab.json"), "has merges.txt but no vocab.json"),
    "vocabulary that is not JSON": ("gpt2", write("vocab.json", b"{"), "vocab.json is not JSON"),
    "vocabulary without ids": ("gpt2", write("vocab.json", b'{"a": "b"}'), "should map every token to an id"),
    "duplicate id": ("gpt2", write("vocab.json", b'{"a": 0, "b": 0}'), "gives two tokens the same id"),
    "merges of unknown tokens": ("gpt2", write("merges.txt", b"q w\n"), "merges.txt does not match vocab.json"),
    "no special tokens": ("bart", lambda directory: None, "vocab.json has no </s>"),
    "no target.spm": ("marian", remove("target.spm"), "has source.spm but no target.spm"),
    "invalid source.spm": ("marian", write("source.spm", b"spam"), "source.spm is not a SentencePiece model"),
    "no unknown token": ("marian", write("vocab.json", b'{"</s>": 0}'), "vocab.json has no <unk>"),
    "ids with gaps": ("marian", write("vocab.json", b'{"</s>": 0, "<unk>": 7}'), "lacks some ids below 7"),
    "invalid tokenizer.model": ("llama", write("tokenizer.model", b""), "tokenizer.model is not a SentencePiece model"),
}


@pytest.mark.parametrize(("kind", "corrupt", "message"), INVALID.values(), ids=INVALID.keys())
def test_invalid_tokenizer_files_are_refused_by_name(kind, corrupt, message, byte_level, marian_folders, tmp_path):
    if kind == "marian":
        directory = tmp_path / "folder"
        directory.mkdir()
        copy_files(marian_folders["joint"], directory)
    else:
        directory = byte_level("<|endoftext|>")
    if kind == "llama":
        remove("vocab.json", "merges.txt")(directory)
    corrupt(directory)
    with pytest.raises(UserError, match=message):
        read_tokenizers(directory, kind)


def test_invalid_tokenizer_stops_the_import(save_hf, tmp_path):
    directory = save_hf(GPT2LMHeadModel(GPT2Config(vocab_size=9, n_embd=8, n_head=2, n_layer=1, n_positions=8)))
    (directory / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match="not a valid tokenizer"):
        import_huggingface(directory, tmp_path / "ours")
    assert not (tmp_path / "ours").exists()
