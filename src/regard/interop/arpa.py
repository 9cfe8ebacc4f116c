"""n-gram models as ARPA files, which KenLM, SRILM and others read and write.

A file has words, not text: what a word is was up to a program that put spaces between them. So an imported model has a
tokenizer that splits at spaces, and an exported one has the tokens of its tokenizer as words. Text that is scored with
an ARPA file must be tokenized as the text that it was estimated from.
"""

from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers

from regard.data.tokenizers.tokenizer import SPECIAL_NAMES
from regard.errors import UserError
from regard.files import check_new_folder, check_output
from regard.model.before.ngram.arpa import read_arpa, write_arpa
from regard.model.before.ngram.model import NgramLM
from regard.run import LoadedModel, find_model, load_model, save_model

UNKNOWN = "<unk>"
"""The token of unknown words in ARPA files."""


def export_arpa(folder: Path | str, out: Path | str) -> str:
    """Write an n-gram model as an ARPA file, compressed if its name ends with .gz; returns a sentence about it."""
    source, out = find_model(folder), Path(out)
    if out.is_file():
        raise UserError(f"{out} exists already; choose another file, or remove it first.")
    check_output(out)
    loaded = load_model(folder)
    if not isinstance(loaded.model, NgramLM):
        raise UserError(f"{source} is a model of kind {loaded.config.kind!r}; ARPA files hold n-gram models only.")
    write_arpa(loaded.model, _words(loaded, source), out)
    return f"exported as an ARPA file, {_describe(loaded.model)}."


def import_arpa(path: Path | str, out: Path | str) -> str:
    """Read an ARPA file as a run folder; returns a sentence that says what was imported."""
    path, out = Path(path), Path(out)
    check_new_folder(out)
    model, words = read_arpa(path)
    if UNKNOWN not in words:
        raise UserError(
            f"{path} has no {UNKNOWN} among its 1-grams, so it gives no probability to unknown words; estimate it with "
            f"them (SRILM: ngram-count -unk), or add a line for {UNKNOWN}."
        )
    vocabulary = {word: token for token, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    save_model(model, out, tokenizer=tokenizer, origin={"library": "arpa", "file": path.name})
    return f"imported an ARPA file, {_describe(model)}, with a tokenizer that splits at spaces."


def _words(loaded: LoadedModel, source: Path) -> list[str]:
    """The name of each token; the unknown token has the one that ARPA files prescribe."""
    if loaded.tokenizer is None:
        raise UserError(f"{source} has no tokenizer, so its tokens have no names to write; an ARPA file needs them.")
    names = [loaded.tokenizer.id_to_token(token) for token in range(loaded.config.vocab_size)]
    if UNKNOWN not in names:
        names = [UNKNOWN if name == SPECIAL_NAMES["unk"] else name for name in names]
    return [f"<unused{token}>" if name is None else name for token, name in enumerate(names)]


def _describe(model: NgramLM) -> str:
    counts = [f"{count:,}" for count in (model.config.vocab_size, *model.config.entries)]
    orders = "order 1" if len(counts) == 1 else f"orders 1 to {len(counts)}"
    return f"{' + '.join(counts)} n-grams of {orders}"
