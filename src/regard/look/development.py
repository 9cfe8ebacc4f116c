"""Examples to judge a model by: lines that were typed, the part of its recipe that it was watched with, or what ships.

An example is what goes in and what should come out, as ids: so one loss serves all tasks, the mean of −log p over all
that is asked for. Nothing is ever downloaded here.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from regard.data import registry
from regard.data.corpus import CorpusConfig, read_corpus
from regard.data.labelled import Labelled, Tagged, encode_words
from regard.data.pairs import Pair
from regard.data.pictures import read_pictures
from regard.data.texts import read_texts
from regard.data.trees import Tree, clean, linearise, rooted
from regard.decode.search import precise
from regard.errors import UserError
from regard.look.readers import FillingSubject, LabellingSubject, PicturesSubject
from regard.look.subject import Subject
from regard.look.writer import WriterSubject
from regard.look.writers import LanguageSubject, ParsingSubject, TranslationSubject
from regard.model import EncoderDecoder
from regard.task import read_recipe
from regard.task.labelling_recipe import LabellingRecipe
from regard.task.parser import reading
from regard.task.recipe import Recipe
from regard.task.translation_recipe import HELD_OUT

MOST = 100
"""Examples that are taken where none are given."""
LONGEST = 256
"""Tokens of an example; longer ones are cut, or left out where they cannot be."""
HIDDEN = 7
"""Of a text to be filled in, every so many tokens one is hidden."""
_ROWS = 16
"""Examples that go through a model at once."""
_NOTHING = -100


class Example(NamedTuple):
    """What goes in, and what is asked for behind each of it (−100: nothing)."""

    inputs: Tensor  # (tokens,), or pixels (channels, height, width)
    wanted: Tensor  # (tokens,), or () where there is one answer for all of it
    source: tuple[int, ...] | None = None
    """What an encoder reads besides."""


class Development(NamedTuple):
    """A development set, and of a translator's the pairs themselves."""

    examples: list[Example]
    pairs: list[Pair]
    recipe: Recipe | None


def development_set(subject: Subject, lines: Sequence[str] | None, folder: Path | None) -> Development:
    """Examples from lines, or else from what the model's folder names and this machine has."""
    recipe = _recipe(folder)
    if lines is not None:
        items: Iterable[Any] = [_item(subject, line) for line in lines if line.strip()]
    else:
        items = islice(_own(subject, recipe, folder), MOST)
    kept = [(item, example) for item in items if (example := _example(subject, item)) is not None]
    if not kept:
        raise UserError("There is nothing to judge the model by: give sentences, or pairs with a tab between them.")
    pairs = [item for item, _ in kept if isinstance(item, Pair)]
    return Development([example for _, example in kept], pairs, recipe)


@torch.no_grad()
def mean_loss(subject: Subject, examples: Sequence[Example]) -> float:
    """The mean of −log p over all that is asked for."""
    total, count = 0.0, 0
    order = sorted(range(len(examples)), key=lambda number: examples[number].inputs.numel())
    for first in range(0, len(order), _ROWS):
        rows = [examples[number] for number in order[first : first + _ROWS]]
        scores, wanted = _scored(subject, rows)
        flat = precise(scores.reshape(-1, scores.shape[-1]))
        total += float(functional.cross_entropy(flat, wanted.reshape(-1), ignore_index=_NOTHING, reduction="sum"))
        count += int((wanted != _NOTHING).sum())
    return total / max(count, 1)


@torch.no_grad()
def each_alone(subject: Subject, examples: Sequence[Example]) -> None:
    """All examples through the model one by one, without padding: what means are taken over."""
    for example in examples:
        _scored(subject, [example])


def _scored(subject: Subject, rows: Sequence[Example]) -> tuple[Tensor, Tensor]:
    """Scores, and what is wanted of them."""
    model: Any = subject.model
    wanted = [row.wanted for row in rows]
    if isinstance(subject, PicturesSubject):
        return model(torch.stack([row.inputs for row in rows]).to(model.device)), torch.stack(wanted).to(model.device)
    lengths = torch.tensor([len(row.inputs) for row in rows], device=model.device)
    padded = torch.nn.utils.rnn.pad_sequence([row.inputs for row in rows], batch_first=True).to(model.device)
    asked = (
        torch.stack(wanted)
        if wanted[0].dim() == 0
        else torch.nn.utils.rnn.pad_sequence(wanted, batch_first=True, padding_value=_NOTHING)
    ).to(model.device)
    same = None if len(rows) == 1 else lengths
    if isinstance(model, EncoderDecoder):
        source, sizes = (each.to(model.device) for each in model.padded([row.source or () for row in rows]))
        return model(source, padded, source_lengths=None if same is None else sizes, target_lengths=same), asked
    return model(padded, lengths=same), asked


def _example(subject: Subject, item: Any) -> Example | None:
    """What goes in and what should come out; None where it cannot be used."""
    match subject:
        case TranslationSubject():
            return _pair(subject, item)
        case ParsingSubject():
            return _tree(subject, item)
        case LanguageSubject():
            ids = subject.generator.text.encode(item)
            prompt = subject.generator.prompt(ids)[:LONGEST]
            return None if len(prompt) < 2 else Example(torch.tensor(prompt[:-1]), torch.tensor(prompt[1:]))
        case FillingSubject():
            return _filled(subject, item)
        case LabellingSubject():
            return _labelled(subject, item)
        case PicturesSubject():
            pixels, label = item
            return Example(subject.classifier.pixels(pixels), torch.tensor(label))
    raise UserError(f"{subject.name} cannot be judged by a loss.")


def _pair(subject: TranslationSubject, pair: Pair) -> Example | None:
    translator = subject.translator
    source, target = translator.source_text.encode(pair.source), translator.target_text.encode(pair.target)
    if not pair.source.strip() or not target or max(len(source), len(target)) > LONGEST:
        return None
    if isinstance(subject.model, EncoderDecoder):
        return _written(subject, tuple(source), target)
    inputs = [*source, *target]  # one text: the source is a prompt, of which nothing is asked
    wanted = [*[_NOTHING] * (len(source) - 1), *target, subject.end]
    return Example(torch.tensor(inputs), torch.tensor(wanted))


def _tree(subject: ParsingSubject, tree: Tree) -> Example | None:
    symbols = subject.parser.symbols
    written = linearise(tree, symbols.tagged)
    if any(symbol not in symbols for symbol in written):
        return None  # the model could not write it
    ids = subject.parser.text.encode(reading(tree.words()))
    return _written(subject, tuple(ids), symbols.encode(written))


def _written(subject: WriterSubject, source: tuple[int, ...], target: Sequence[int]) -> Example | None:
    assert isinstance(subject.model, EncoderDecoder)
    if max(len(source), len(target)) > LONGEST:
        return None
    first = int(subject.model.firsts(1)[0])
    return Example(torch.tensor([first, *target]), torch.tensor([*target, subject.end]), source)


def _filled(subject: FillingSubject, text: str) -> Example | None:
    """Every seventh token hidden, counted through the text's own tokens."""
    before, after = subject.frame
    ids = subject.filler.text.encode(text)[: LONGEST - len(before) - len(after)]
    row = [*before, *ids, *after]
    places = range(len(before) + min(len(ids) - 1, HIDDEN // 2), len(before) + len(ids), HIDDEN)
    if not ids:
        return None
    inputs, wanted = torch.tensor(row), torch.full((len(row),), _NOTHING)
    for place in places:
        wanted[place], inputs[place] = row[place], subject.filler.mask
    return Example(inputs, wanted)


def _labelled(subject: LabellingSubject, item: Labelled | Tagged) -> Example:
    labels, text = subject.labeller.labels, subject.labeller.text
    before, after = subject.frame
    if isinstance(item, Labelled):
        ids = text.encode(item.text)[: LONGEST - len(before) - len(after)]
        return Example(torch.tensor([*before, *ids, *after]), torch.tensor(_number(labels, item.label)))
    ((ids, firsts),) = encode_words([item.words], text)
    row = [*before, *ids, *after]
    wanted = torch.full((len(row),), _NOTHING)
    for first, tag in zip(firsts, item.tags, strict=True):
        wanted[len(before) + first] = _number(labels, tag)
    return Example(torch.tensor(row), wanted)


def _number(labels: Sequence[str], label: str) -> int:
    if label not in labels:
        raise UserError(f"The label {label!r} is not among those of this model: {', '.join(labels[:10])} ….")
    return list(labels).index(label)


def _item(subject: Subject, line: str) -> Any:
    """What a line says, as it is typed for this task."""
    match subject:
        case TranslationSubject():
            source, tab, target = line.partition("\t")
            if not tab or not source.strip() or not target.strip():
                raise UserError(f"{line[:60]!r} is no pair; write the sentence, a tab, and its translation.")
            return Pair(source.strip(), target.strip())
        case ParsingSubject():
            tree = clean(Tree.of(line))
            if tree is None:
                raise UserError(f"{line[:60]!r} is a tree without words.")
            return rooted(tree)
        case LabellingSubject() if subject.whole:
            text, tab, label = line.rpartition("\t")
            if not tab:
                raise UserError(f"{line[:60]!r} has no label; write the text, a tab, and its label.")
            return Labelled(text, label.strip())
        case LabellingSubject():
            cut = [word.rpartition("/") for word in line.split()]
            if not all(slash for _, slash, _ in cut):
                raise UserError(f"{line[:60]!r} has a word without its tag; write word/TAG word/TAG ….")
            return Tagged([word for word, _, _ in cut], [tag for _, _, tag in cut])
        case PicturesSubject():
            raise UserError("Pictures cannot be given as lines; leave the lines out to take those of the recipe.")
    return line


def _recipe(folder: Path | None) -> Recipe | None:
    """The recipe of a run, where there is one that can be read."""
    if folder is None or not (folder / "recipe.toml").is_file():
        return None
    try:
        return read_recipe(folder / "recipe.toml", [])
    except UserError:
        return None


def _own(subject: Subject, recipe: Recipe | None, folder: Path | None) -> Iterator[Any]:
    """What the recipe of a model names: what it was watched with, or else a test set; or else what ships."""
    if recipe is not None:
        named = recipe.places()
        for name in ["valid", *(each for each in named if each not in ("train", "valid"))]:
            if name in named and all(_is_here(part) for part in named[name]):
                return (item for part in named[name] for item in _items(subject, recipe, part))
    if isinstance(subject, TranslationSubject):
        aside = None if folder is None else folder / HELD_OUT
        if aside is not None and aside.is_file():
            return iter(read_corpus(CorpusConfig(path=str(aside))))
        sets = {part.set for part in (recipe.places().get("train", ()) if recipe is not None else ())}
        for shipped in (f"{name}-small" for name in sets if name is not None):
            if shipped in {one.name for one in registry.sets()} and (place := registry.find(shipped)) is not None:
                file = next(one.name for one in registry.dataset(shipped).files)
                return iter(read_corpus(CorpusConfig(path=str(place / file))))
    raise UserError(
        "The sentences that this model was watched with are not on this machine; give some, one a line"
        + (", each with a tab and its translation behind it." if isinstance(subject, TranslationSubject) else ".")
    )


def _items(subject: Subject, recipe: Recipe, part: Any) -> Iterator[Any]:
    """What a part of a recipe's data holds."""
    match subject:
        case TranslationSubject():
            return read_corpus(part)
        case ParsingSubject():
            return iter(part.trees())
        case LabellingSubject():
            assert isinstance(recipe, LabellingRecipe)
            return recipe.sentences(part, subject.labeller.labels)
        case PicturesSubject():
            found = read_pictures(part, classes=subject.classifier.labels)
            return ((found.pixels[number], int(found.labels[number])) for number in range(len(found)))
    lines = (line for text in read_texts(part) for line in text.splitlines())
    return (line for line in lines if len(line.split()) > 2)


def _is_here(part: Any) -> bool:
    """Whether the files of a part of a recipe's data are on this machine."""
    names = [name for key in ("path", "source", "target", "labels") if (name := getattr(part, key, None))]
    try:
        if part.set is not None:
            return registry.find(part.set, names or None) is not None
    except UserError:
        return False
    return all(Path(name).exists() for name in names)
