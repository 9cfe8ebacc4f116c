"""`regard translate`."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.options import (
    Alternatives,
    Device,
    Engine,
    EngineName,
    Forbid,
    MinP,
    Prefix,
    Repetition,
    Require,
    Seed,
    Temperature,
    Threads,
    TopK,
    TopP,
    chosen_device,
    drawing,
)
from regard.cli.progress import counting, further
from regard.errors import UserError

if TYPE_CHECKING:
    import torch

    from regard.data.tokenizer import TextTokenizer
    from regard.decode import DecodeConfig, Wish
    from regard.task import Translated, Translator

_CHUNK = 4000
"""Lines taken at once from a file or a pipe: enough to sort them by length, few enough to hold."""


def translate(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A run folder, or a model that ships: en-tr.")],
    text: Annotated[list[str] | None, typer.Argument(metavar="[TEXT]...", help="Without it, standard input.")] = None,
    file: Annotated[list[Path] | None, typer.Option(help="Translate a file, line by line; .gz, .xz, .zst too.")] = None,
    output: Annotated[
        Path | None, typer.Option(help="Write to this file; until all is done, to its name with .partial.")
    ] = None,
    beams: Annotated[int | None, typer.Option(min=1, help="1 is greedy; the model's own number if not given.")] = None,
    nbest: Annotated[int, typer.Option(min=1, help="How many translations of each line, best first.")] = 1,
    diverse: Annotated[
        int | None, typer.Option(min=2, help="Groups of beams kept apart, for translations that differ.")
    ] = None,
    prefix: Prefix = "",
    require: Require = None,
    forbid: Forbid = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    repetition: Repetition = None,
    seed: Seed = None,
    together: Annotated[
        list[str] | None, typer.Option("--with", metavar="MODEL", help="Another model to translate with: an ensemble.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line, with scores and tokens.")] = False,
    alternatives: Alternatives = 0,
    kernels: Annotated[
        bool | None,
        typer.Option("--compile/--no-compile", help="Compiled steps on a CPU; if not given, where they pay."),
    ] = None,
    device: Device = "auto",
    threads: Threads = None,
    engine: Engine = EngineName.regard,
) -> None:
    """Translate text, files or standard input: a line in, a line out; paragraphs keep their layout."""
    from regard.task.words import make_wish

    if text and file:
        raise UserError("TEXT and --file both name what to translate; give one of the two.")
    draws = drawing(temperature, top_k, top_p, min_p, repetition, seed)
    if engine is EngineName.regard:
        translator = _opened(model, together or [], chosen_device(device, threads))
        translator.compile = kernels
    else:
        where = ctranslate2_device(device, threads, seed)
        translator = _opened_in_ctranslate2(model, together or [], where, as_json)
    decode = _search(translator, beams, nbest, diverse, draws)
    wish = make_wish(translator.target_text, prefix=prefix, required=require or (), forbidden=forbid or ())
    shown = alternatives if as_json else 0
    if engine is EngineName.ctranslate2:
        check_for_ctranslate2(decode, wish, shown)
    with written(output) as write, counting("sentences", None) as progress:
        before = 0
        for lines in chunks_of_lines(text, file):
            if before == 0 and engine is EngineName.regard:
                _say_what_it_costs(translator, len(lines))
            found = translator.translate_all(
                lines,
                decode.model_copy(update={"seed": decode.seed + before}),  # every line its own
                further(progress, before),
                wish=wish,
                alternatives=shown,
            )
            before += sum(len(one.sentences) for one in found)
            for one in found:
                for line in _shown(one, nbest, as_json, translator.target_text):
                    write(line)


def _say_what_it_costs(translator: "Translator", lines: int) -> None:
    from regard.model import swift

    if translator.pays_to_compile(lines) and not swift.is_compiled():
        print("Compiling for this CPU, once; that takes some seconds (--no-compile avoids it).", file=sys.stderr)


def _opened(model: str, together: list[str], where: "torch.device") -> "Translator":
    from regard.task import load_translator

    translator = load_translator(model, where)
    return translator.joined([load_translator(name, where) for name in together]) if together else translator


def _opened_in_ctranslate2(model: str, together: list[str], where: "torch.device", scored: bool) -> "Translator":
    from regard.task import load_translator
    from regard.task.ctranslate2 import CTranslate2Translator

    if together:
        raise UserError("CTranslate2 cannot join models in an ensemble; leave out --with, or use --engine regard.")
    return CTranslate2Translator(load_translator(model), model, where, scored=scored)


def ctranslate2_device(device: str, threads: int | None, seed: int | None) -> "torch.device":
    """The device that is meant: CTranslate2 knows cpu and cuda. Its seeds are not ours, and are not taken."""
    if seed is not None:
        raise UserError("CTranslate2 cannot draw by a seed for each line; leave out --seed, or use --engine regard.")
    where = chosen_device(device, threads)
    return chosen_device("cpu", threads) if device == "auto" and where.type != "cuda" else where


def check_for_ctranslate2(decode: "DecodeConfig", wish: "Wish", alternatives: int) -> None:
    """Refuse at once what CTranslate2 cannot do, and say where its search differs from ours."""
    from regard.task.ctranslate2 import check_possible, differs

    check_possible(decode, wish, alternatives)
    if sentence := differs(decode):
        print(sentence, file=sys.stderr)


def _search(
    translator: "Translator", beams: int | None, nbest: int, diverse: int | None, draws: dict[str, Any]
) -> "DecodeConfig":
    from regard.decode import DecodeConfig

    if draws:
        if (beams or 1) > 1 or nbest > 1 or diverse is not None:
            raise UserError("Words are drawn by chance for one output: leave out --beams, --nbest and --diverse.")
        return DecodeConfig.read(translator.decode.plain() | {"beams": 1, "sample": True} | draws)
    wanted = max(beams or translator.decode.beams, nbest)
    if diverse is not None:
        wanted = -(-max(wanted, diverse) // diverse) * diverse
    changes = {"beams": wanted} | ({} if diverse is None else {"groups": diverse})
    return DecodeConfig.read(translator.decode.plain() | changes)


@contextmanager
def written(output: Path | None) -> Iterator[Callable[[str], None]]:
    """Takes lines as they come: to standard output, or to a file that is whole only at the end."""
    from regard.files import growing_file

    if output is None:
        yield lambda line: print(line, flush=True)
        return
    count = 0
    try:
        with growing_file(output) as file:

            def write(line: str) -> None:
                nonlocal count
                count += 1
                file.write(f"{line}\n")
                file.flush()

            yield write
    except KeyboardInterrupt:
        lines = "1 line is" if count == 1 else f"{count:,} lines are"
        done = f"{lines} in {output}.partial" if count else "nothing was written"
        print(f"Stopped: {done}.", file=sys.stderr)
        raise SystemExit(130) from None


def chunks_of_lines(text: list[str] | None, files: list[Path] | None) -> Iterator[list[str]]:
    """What is to be worked on, some lines at a time: all that were typed, a line at a time from a terminal."""
    if text:
        yield text
        return
    stream = _lines(files)
    size = 1 if not files and sys.stdin.isatty() else _CHUNK
    while chunk := list(islice(stream, size)):
        yield chunk


def _lines(files: list[Path] | None) -> Iterator[str]:
    from regard.data.text import read_lines

    if files:
        for path in files:
            yield from read_lines(path)
        return
    try:
        for line in _as_text(sys.stdin.buffer):
            yield line.rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise UserError(f"Standard input is not UTF-8: {error.reason}; convert it, for instance with iconv.") from None


def _as_text(lines: Iterable[bytes]) -> Iterator[str]:
    return (line.decode("utf-8") for line in lines)


def _shown(one: "Translated", nbest: int, as_json: bool, tokenizer: "TextTokenizer") -> Iterator[str]:
    if as_json:
        yield json.dumps(_facts(one, nbest, tokenizer), ensure_ascii=False)
        return
    for number in range(min(nbest, max(one.candidates, 1))):
        yield one.candidate(number)


def _facts(one: "Translated", nbest: int, tokenizer: "TextTokenizer") -> dict[str, Any]:
    sentences = [
        {
            "source": source,
            "translations": [
                {
                    "text": each.text,
                    "score": round(each.score, 4),
                    "log_probability": round(each.log_probability, 4),
                    "tokens": token_facts(tokenizer, each.tokens, each.steps, each.alternatives),
                    "ended": each.ended,
                }
                for each in found[:nbest]
            ],
        }
        for source, found in one.sentences
    ]
    return {"source": one.source, "translation": one.text, "sentences": sentences}


def token_facts(
    tokenizer: "TextTokenizer",
    tokens: tuple[int, ...],
    steps: tuple[float, ...],
    alternatives: tuple[tuple[tuple[int, float], ...], ...],
) -> list[dict[str, Any]]:
    """Every token with its text and log-probability, and what else could have stood there. The end has no text."""
    facts: list[dict[str, Any]] = []
    for number, gain in enumerate(steps):
        text = tokenizer.decode([tokens[number]]) if number < len(tokens) else ""
        fact: dict[str, Any] = {"text": text, "log_probability": round(gain, 4)}
        if alternatives:
            fact["alternatives"] = [
                {"text": tokenizer.decode([token]), "log_probability": round(chance, 4)}
                for token, chance in alternatives[number]
            ]
        facts.append(fact)
    return facts
