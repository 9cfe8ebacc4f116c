"""Imported tokenizers give the ids of those they came from, on text of many kinds."""

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

from .texts import ENGLISH, TEXTS, TURKISH, train_pieces


@pytest.fixture
def byte_level(tmp_path):
    """A folder with vocab.json and merges.txt, special words in front."""

    def train(*special):
        trained = ByteLevelBPETokenizer()
        trained.train_from_iterator(
            (ENGLISH + TURKISH) * 5, vocab_size=400, special_tokens=list(special), show_progress=False
        )
        directory = tmp_path / "folder"
        directory.mkdir()
        trained.save_model(str(directory))
        return directory

    return train


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("prefix", [False, True])
def test_gpt2_files_give_the_ids_of_their_tokenizer(text, prefix, byte_level):
    directory = byte_level("<|endoftext|>")
    (directory / "tokenizer_config.json").write_text(json.dumps({"add_prefix_space": prefix}))
    theirs = GPT2Tokenizer.from_pretrained(directory)
    ours, _ = read_tokenizers(directory, "gpt2")
    assert ours.encode(text).ids == theirs(text)["input_ids"]
    assert ours.decode(ours.encode(text).ids) == theirs.decode(theirs(text)["input_ids"])


@pytest.mark.parametrize("text", TEXTS)
def test_bart_files_give_the_ids_of_their_tokenizer(text, byte_level):
    directory = byte_level("<s>", "<pad>", "</s>", "<unk>", "<mask>")
    theirs = RobertaTokenizer.from_pretrained(directory)
    ours, _ = read_tokenizers(directory, "bart")
    expected = theirs(text)["input_ids"]
    assert ours.encode(text).ids == expected
    assert ours.decode(expected) == theirs.decode(expected, skip_special_tokens=True)


def test_words_added_after_training_have_the_ids_the_folder_gives(byte_level):
    directory = byte_level("<|endoftext|>")
    size = len(json.loads((directory / "vocab.json").read_text()))
    (directory / "added_tokens.json").write_text(json.dumps({"<one>": size, "<two>": size + 1}))
    ours, _ = read_tokenizers(directory, "gpt2")
    assert ours.encode("a<two>b<one>", add_special_tokens=False).ids[1::2] == [size + 1, size]


def test_an_added_word_whose_id_is_taken_is_refused(byte_level):
    directory = byte_level("<|endoftext|>")
    (directory / "added_tokens.json").write_text(json.dumps({"<one>": 5}))
    with pytest.raises(UserError, match="the added token '<one>' should have the id 5"):
        read_tokenizers(directory, "gpt2")


def test_a_start_is_put_before_every_text_where_the_folder_asks_for_it(byte_level):
    directory = byte_level("<|endoftext|>")
    (directory / "tokenizer_config.json").write_text(json.dumps({"add_bos_token": True}))
    ours, _ = read_tokenizers(directory, "gpt2")
    assert ours.encode("the cat").tokens[0] == "<|endoftext|>"


def test_special_words_of_the_folder_s_own_are_special(byte_level):
    directory = byte_level("<begin>", "<end>", "<pad>", "<unk>", "<mask>")
    names = {"bos_token": "<begin>", "cls_token": "<begin>", "eos_token": "<end>", "sep_token": {"content": "<end>"}}
    (directory / "special_tokens_map.json").write_text(json.dumps(names))
    ours, _ = read_tokenizers(directory, "bart")
    encoded = ours.encode("the cat")
    assert (encoded.tokens[0], encoded.tokens[-1]) == ("<begin>", "<end>")
    assert ours.decode(encoded.ids) == "the cat"


# --- Marian ---


def marian_folder(directory, *, apart=False, without=(), codes=(), **options):
    """Two sentencepiece models and the vocabulary (or two of them) that gives their pieces ids."""
    from sentencepiece import SentencePieceProcessor

    directory.mkdir()
    sides = {"source": ENGLISH, "target": TURKISH}
    pieces = {}
    for side, texts in sides.items():
        train_pieces(directory / f"{side}.spm", texts, **options)
        model = SentencePieceProcessor(model_file=str(directory / f"{side}.spm"))
        pieces[side] = [model.id_to_piece(number) for number in range(3, len(model))]
    # Marian numbers pieces by how often they occur, so by another order than sentencepiece does.
    words = {side: sorted(set(found) - set(without), key=lambda text: text[::-1]) for side, found in pieces.items()}
    joint = sorted({*words["source"], *words["target"]}, key=lambda text: text[::-1])
    for name, own in {"vocab.json": "source", "target_vocab.json": "target"}.items():
        every = ["</s>", "<unk>", *codes, *(words[own] if apart else joint), "<pad>"]
        if apart or own == "source":
            (directory / name).write_text(json.dumps({text: number for number, text in enumerate(every)}))
    if apart:
        (directory / "tokenizer_config.json").write_text(json.dumps({"separate_vocabs": True}))
    return directory


@pytest.fixture(scope="module")
def marian_folders(tmp_path_factory):
    """Folders of several kinds, trained once."""
    place = tmp_path_factory.mktemp("marian")
    return {
        "joint": marian_folder(place / "joint"),
        "apart": marian_folder(place / "apart", apart=True),
        "with codes": marian_folder(place / "codes", codes=(">>tur<<", ">>deu<<")),
        "characters as they are": marian_folder(
            place / "identity", normalization_rule_name="identity", remove_extra_whitespaces=False
        ),
        "without a mark at the start": marian_folder(place / "start", add_dummy_prefix=False),
    }


def their_marian(directory):
    files = [str(directory / name) for name in ("source.spm", "target.spm", "vocab.json")]
    apart = (directory / "target_vocab.json").is_file()
    target = str(directory / "target_vocab.json") if apart else None
    return MarianTokenizer(*files, target_vocab_file=target, separate_vocabs=apart)


sacremoses = pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses:UserWarning")

# Runs of characters that only the other side's model knows differ by design (see the test below): none are in here.
SOURCE_TEXTS = [*(text for text in TEXTS if "ığ" not in text), *ENGLISH, "ş", "a ş and a çi", "Üsküdar"]
TARGET_TEXTS = [*TEXTS, *TURKISH, "Zürich", "é", "façade W"]


@sacremoses
@pytest.mark.parametrize(
    "kind", ["joint", "apart", "with codes", "characters as they are", "without a mark at the start"]
)
def test_marian_files_give_the_ids_of_their_tokenizer(kind, marian_folders):
    theirs = their_marian(marian_folders[kind])
    source, target = read_tokenizers(marian_folders[kind], "marian")
    for text in SOURCE_TEXTS:
        assert source.encode(text).ids == theirs(text)["input_ids"], text
    for text in TARGET_TEXTS:
        assert target.encode(text).ids == theirs(text_target=text)["input_ids"], text


@sacremoses
def test_marian_ids_become_the_text_again(marian_folders):
    theirs = their_marian(marian_folders["joint"])
    _, target = read_tokenizers(marian_folders["joint"], "marian")
    for text in TURKISH:
        numbers = theirs(text_target=text)["input_ids"]
        assert target.decode(numbers) == theirs.decode(numbers, skip_special_tokens=True) == text


@sacremoses
@pytest.mark.parametrize("text", [">>tur<< The cat sat.", ">>deu<<The cat", ">>tur<<"])
def test_a_language_code_is_one_token(text, marian_folders):
    theirs = their_marian(marian_folders["with codes"])
    source, _ = read_tokenizers(marian_folders["with codes"], "marian")
    assert source.encode(text).ids == theirs(text)["input_ids"]


def test_a_piece_without_an_id_is_cut_into_smaller_ones(tmp_path):
    """Theirs gives <unk> here; a tokenizer cannot, and known pieces say more."""
    directory = marian_folder(tmp_path / "folder", without=("▁the",))
    source, _ = read_tokenizers(directory, "marian")
    tokens = source.encode("the cat").tokens
    assert "<unk>" not in tokens
    assert "".join(tokens) == "▁the▁cat</s>"


def test_a_run_of_characters_that_only_the_other_side_knows_keeps_its_letters(marian_folders):
    """Theirs gives one <unk> here; their letters have ids, so a tokenizer gives those."""
    source, _ = read_tokenizers(marian_folders["joint"], "marian")
    assert source.encode("ığş").tokens == ["▁", "ı", "ğ", "ş", "</s>"]


def test_a_word_of_the_other_side_is_still_decoded(marian_folders):
    source, target = read_tokenizers(marian_folders["joint"], "marian")
    numbers = [number for number in target.encode("Kedi fareyi yedi").ids if number > 1]
    assert source.decode(numbers) == "Kedi fareyi yedi"


def test_sides_that_are_the_same_have_one_tokenizer(marian_folders, tmp_path):
    directory = tmp_path / "folder"
    directory.mkdir()
    for name in ("source.spm", "vocab.json"):
        (directory / name).write_bytes((marian_folders["joint"] / name).read_bytes())
    (directory / "target.spm").write_bytes((directory / "source.spm").read_bytes())
    source, target = read_tokenizers(directory, "marian")
    assert source is not None
    assert target is None


def copy(folder, directory):
    for path in folder.iterdir():
        (directory / path.name).write_bytes(path.read_bytes())


def test_an_imported_translator_has_a_tokenizer_for_each_side(marian_folders, save_theirs, tmp_path):
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
    directory = save_theirs(MarianMTModel(config))
    copy(marian_folders["joint"], directory)
    assert import_huggingface(directory, tmp_path / "ours").endswith("with its tokenizer.")
    ours = regard.load(tmp_path / "ours")
    source, target = ours.tokenizer.encode("The cat sat."), ours.target_tokenizer.encode("Kedi fareyi yedi.")
    assert ours.logits([source.ids], [target.ids]).shape == (1, len(target.ids), size)


# --- whole folders ---


def test_a_tokenizer_json_is_used_as_it_is(byte_level):
    directory = byte_level("<|endoftext|>")
    ours, _ = read_tokenizers(directory, "gpt2")
    ours.add_tokens(["entirely new"])
    ours.save(str(directory / "tokenizer.json"))
    (directory / "merges.txt").unlink()
    again, _ = read_tokenizers(directory, "gpt2")
    assert again.to_str() == Tokenizer.from_file(str(directory / "tokenizer.json")).to_str()
    assert again.encode("entirely new").tokens == ["entirely new"]


@pytest.mark.parametrize("kind", ["marian", "bart", "gpt2", "llama"])
def test_a_folder_without_tokenizer_files_has_none(kind, tmp_path):
    assert read_tokenizers(tmp_path, kind) == (None, None)


def write(name, content):
    def spoil(directory):
        (directory / name).write_bytes(content)

    return spoil


def remove(*names):
    def spoil(directory):
        for name in names:
            (directory / name).unlink()

    return spoil


WRONG = {
    "tokenizer.json that is none": ("gpt2", write("tokenizer.json", b"{}"), "tokenizer.json is not a tokenizer"),
    "no merges": ("gpt2", remove("merges.txt"), "has vocab.json but no merges.txt"),
    "no vocabulary": ("bart", remove("vocab.json"), "has merges.txt but no vocab.json"),
    "vocabulary that is no JSON": ("gpt2", write("vocab.json", b"{"), "vocab.json is not JSON"),
    "vocabulary of words": ("gpt2", write("vocab.json", b'{"a": "b"}'), "should give every word an id"),
    "an id twice": ("gpt2", write("vocab.json", b'{"a": 0, "b": 0}'), "gives two words the same id"),
    "merges of unknown words": ("gpt2", write("merges.txt", b"q w\n"), "merges.txt does not fit vocab.json"),
    "no words to wrap a text in": ("bart", lambda directory: None, "vocab.json has no </s>"),
    "no target.spm": ("marian", remove("target.spm"), "has source.spm but no target.spm"),
    "source.spm that is none": ("marian", write("source.spm", b"spam"), "source.spm is not a sentencepiece model"),
    "no unknown word": ("marian", write("vocab.json", b'{"</s>": 0}'), "vocab.json has no <unk>"),
    "ids with holes": ("marian", write("vocab.json", b'{"</s>": 0, "<unk>": 7}'), "leaves out some ids below 7"),
    "no tokenizer.model": ("llama", write("tokenizer.model", b""), "tokenizer.model is not a sentencepiece model"),
}


@pytest.mark.parametrize(("kind", "spoil", "sentence"), WRONG.values(), ids=WRONG.keys())
def test_a_tokenizer_that_cannot_be_read_is_named(kind, spoil, sentence, byte_level, marian_folders, tmp_path):
    if kind == "marian":
        directory = tmp_path / "folder"
        directory.mkdir()
        copy(marian_folders["joint"], directory)
    else:
        directory = byte_level("<|endoftext|>")
    if kind == "llama":
        remove("vocab.json", "merges.txt")(directory)
    spoil(directory)
    with pytest.raises(UserError, match=sentence):
        read_tokenizers(directory, kind)


def test_a_bad_tokenizer_stops_the_import(save_theirs, tmp_path):
    directory = save_theirs(GPT2LMHeadModel(GPT2Config(vocab_size=9, n_embd=8, n_head=2, n_layer=1, n_positions=8)))
    (directory / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match="not a tokenizer"):
        import_huggingface(directory, tmp_path / "ours")
    assert not (tmp_path / "ours").exists()
