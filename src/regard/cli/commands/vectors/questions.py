"""Questions on word vectors: `near`, `analogy`, `similarity`, `odd` and `compare`."""

import json
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.commands.vectors.model import Asked, WordsArgument, app, split_words
from regard.cli.lines import check_files, open_output, process_lines
from regard.cli.options import JsonOption, OutputOption
from regard.errors import UserError

if TYPE_CHECKING:
    from regard.model.before.word_vectors.keyed_vectors import Neighbor

TopOption = Annotated[int, typer.Option(min=1, max=100_000, help="The number of words to print.")]
LimitOption = Annotated[
    int | None, typer.Option(min=1, help="Answer with the first words only, which are the most frequent: 30000.")
]


@app.command("near")
def near(
    context: typer.Context,
    words: WordsArgument = None,
    top: TopOption = 10,
    limit: LimitOption = None,
    output: OutputOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the most similar words, by the cosine of their vectors.

    One per line: the word, its neighbor and the cosine, separated by tabs.
    """
    check_files(words, None, output)
    keyed = context.obj.open()

    def answer(word: str) -> str:
        found = keyed.near(word, top, limit=limit)
        if as_json:
            return _json({"word": word, "neighbors": _records(found)})
        return "\n".join(f"{word}\t{one.word}\t{one.similarity:.4f}" for one in found)

    process_lines(words, None, output, "words", _each(lambda line: answer(line.strip())))


@app.command("analogy")
def analogy(
    context: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="A B C", help="Three words: man king woman. Default: standard input, three per line."),
    ] = None,
    top: TopOption = 5,
    limit: LimitOption = None,
    output: OutputOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the words that are to C as B is to A.

    They are the most similar to b − a + c, where each vector has a length of 1, except these three (3CosAdd).
    """
    check_files(words, None, output)
    keyed = context.obj.open()

    def answer(line: str) -> str:
        a, b, c = _words_of(line, 3, "an analogy", "man king woman")
        found = keyed.analogy(a, b, c, top, limit=limit)
        if as_json:
            return _json({"question": [a, b, c], "answers": _records(found)})
        return "\n".join(f"{a} {b} {c}\t{one.word}\t{one.similarity:.4f}" for one in found)

    process_lines(_one_line(words), None, output, "questions", _each(answer))


@app.command("similarity")
def similarity(
    context: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="WORD WORD", help="Two words. Default: standard input, two per line."),
    ] = None,
    output: OutputOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the cosine of the vectors of two words."""
    check_files(words, None, output)
    keyed = context.obj.open()

    def answer(line: str) -> str:
        first, second = _words_of(line, 2, "a similarity", "cat dog")
        found = keyed.similarity(first, second)
        if as_json:
            return _json({"words": [first, second], "similarity": round(found, 6)})
        return f"{first}\t{second}\t{found:.4f}"

    process_lines(_one_line(words), None, output, "pairs", _each(answer))


@app.command("odd")
def odd(
    context: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="WORD", help="At least three words. Default: standard input, one question per line."),
    ] = None,
    output: OutputOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the word that fits the others least.

    Its vector is the least similar to the mean of all. With --json, the similarity of each word to that is printed too.
    """
    check_files(words, None, output)
    keyed = context.obj.open()

    def answer(line: str) -> str:
        found = keyed.odd(split_words(line))
        return _json({"odd": found[0].word, "similarities": _records(found)}) if as_json else found[0].word

    process_lines(_one_line(words), None, output, "questions", _each(answer))


@app.command("compare")
def compare(
    context: typer.Context,
    other: Annotated[str, typer.Argument(metavar="OTHER", help="The vectors to compare with, of any kind.")],
    words: Annotated[
        int, typer.Option(min=3, help="Compare this many words that both have, the first ones of MODEL.")
    ] = 10_000,
    neighbors: Annotated[int, typer.Option(min=1, max=1000, help="Compare this many nearest neighbors.")] = 10,
    top: Annotated[int, typer.Option(min=0, help="Print this many words on which the two agree least.")] = 10,
    output: OutputOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare two sets of word vectors.

    Coordinates mean nothing by themselves, so both measures do without: the overlap of each word's nearest neighbors,
    and the cosine of its two vectors after one set has been rotated onto the other (orthogonal Procrustes).
    """
    from regard.model.before.word_vectors.comparison import compare_vectors

    check_files([other], None, output)
    first, second = context.obj.open(), Asked(other, context.obj.side).open()
    found = compare_vectors(first, second, words=words, neighbors=neighbors)
    different = found.most_different(top)
    with open_output(output) as write:
        if as_json:
            record = {"models": [first.name, second.name], "shared": found.shared, "compared": len(found.words)}
            record |= {"neighbors": found.neighbors, "overlap": round(found.overlap, 4)}
            record |= {"chance": round(found.chance, 6), "similarity": round(found.similarity, 4)}
            rows = [
                {"word": one.word, "overlap": round(one.overlap, 4), "similarity": round(one.similarity, 4)}
                for one in different
            ]
            write(_json(record | {"most_different": rows}))
            return
        write(f"{found.shared:,} words in common, {len(found.words):,} of them compared")
        chance = f"expected at random {found.chance:.2%}"
        write(f"the same among the {found.neighbors} nearest neighbors: {found.overlap:.1%} ({chance})")
        write(f"cosine after rotation: {found.similarity:.3f}")
        for one in different:
            write(f"{one.word}\t{one.similarity:.3f}\t{one.overlap:.0%}")


def _each(answer: Callable[[str], str]) -> Callable[[list[str], list[int], Callable[[int], None]], Iterable[str]]:
    """Answers each line that is not empty."""

    def process(lines: list[str], numbers: list[int], progress: Callable[[int], None]) -> Iterable[str]:
        for done, line in enumerate(lines, start=1):
            if line.strip():
                yield answer(line)
            progress(done)

    return process


def _one_line(words: list[str] | None) -> list[str] | None:
    """The words of the command line as one question."""
    return ["\t".join(words)] if words else None


def _words_of(line: str, count: int, what: str, example: str) -> list[str]:
    words = split_words(line)
    if len(words) != count:
        raise UserError(f"{what} needs {count} words, such as {example}; found {len(words)}: {' '.join(words)!r}.")
    return words


def _records(found: Sequence["Neighbor"]) -> list[dict[str, Any]]:
    return [{"word": one.word, "similarity": round(one.similarity, 6)} for one in found]


def _json(record: dict[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False)
