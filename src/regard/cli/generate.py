"""`regard generate`."""

import json
import sys
from collections.abc import Callable, Iterable
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.lines import (
    check_engine,
    check_for_ctranslate2,
    ctranslate2_device,
    padded,
    partial_stays,
    say_what_it_costs,
    set_forms,
    shown_alternatives,
    token_facts,
    work_through,
)
from regard.cli.options import (
    Alternatives,
    AsJson,
    Device,
    Engine,
    EngineName,
    Forbid,
    Kernels,
    MinP,
    Output,
    Precision,
    PrecisionName,
    Repetition,
    Require,
    Seed,
    Temperature,
    Threads,
    TopK,
    TopP,
    drawing,
)
from regard.cli.processes import PATIENCE, Processes, one_voice, start_others, taking_part
from regard.errors import UserError

if TYPE_CHECKING:
    import torch

    from regard.task.generator import Generated, Generator


def generate(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A run folder with a language model.")],
    prompt: Annotated[
        list[str] | None, typer.Argument(metavar="[PROMPT]...", help="Without it, standard input, one a line.")
    ] = None,
    file: Annotated[
        list[Path] | None, typer.Option(help="Prompts from a file, one a line; .gz, .xz, .zst too.")
    ] = None,
    output: Output = None,
    length: Annotated[int, typer.Option(min=1, help="The most tokens to write.")] = 200,
    count: Annotated[int, typer.Option(min=1, help="How many continuations of each prompt.")] = 1,
    beams: Annotated[int | None, typer.Option(min=1, help="Search for the likeliest text; 1 is greedy.")] = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    repetition: Repetition = None,
    seed: Seed = None,
    stop: Annotated[
        list[str] | None, typer.Option(help="End before this text comes; may be given several times.")
    ] = None,
    require: Require = None,
    forbid: Forbid = None,
    as_json: AsJson = False,
    alternatives: Alternatives = 0,
    kernels: Kernels = None,
    precision: Precision = PrecisionName.float32,
    device: Device = "auto",
    threads: Threads = None,
    engine: Engine = EngineName.regard,
    processes: Processes = None,
) -> None:
    """Go on with a text. One prompt is written as it comes; several, or standard input, one result a line."""
    with one_voice():
        if prompt and file:
            raise UserError("PROMPT and --file both name what to go on with; give one of the two.")
        alternatives = shown_alternatives(alternatives, as_json)
        draws = drawing(temperature, top_k, top_p, min_p, repetition, seed)
        if beams is not None and draws:
            raise UserError("--beams searches for the likeliest text, the others draw by chance; give one of the two.")
        if require and beams is None:
            raise UserError("--require searches for a text with these words, which wants beams: add --beams 5.")
        check_engine(engine, processes)
        start_others(processes, device, threads, partial_stays(output))
    with taking_part(device, threads, PATIENCE) as (world, place):
        from regard.decode import DecodeConfig
        from regard.task.generator import SAMPLING, load_generator
        from regard.task.words import make_wish

        searched = {} if beams is None else {"beams": max(beams, count), "sample": False}
        decode = DecodeConfig.read(SAMPLING.plain() | draws | searched)
        if engine is EngineName.regard:
            generator = load_generator(model, place)
            set_forms(generator.forms, kernels, precision)
        else:
            generator = _opened_in_ctranslate2(model, ctranslate2_device(device, threads, seed), as_json)
        wish = make_wish(generator.text, required=require or (), forbidden=forbid or ())
        if engine is EngineName.ctranslate2:
            check_for_ctranslate2(decode, wish, alternatives, kernels, precision)
        plain = not as_json and output is None and count == 1 and not (require or forbid)
        say_if_long = _teller_of_long_prompts(generator)
        if prompt and len(prompt) == 1 and plain and decode.beams == 1 and world.size == 1:
            say_if_long(prompt)
            _stream(generator, prompt[0], length, decode, stop or [])
            return

        each_gives = count if decode.beams > 1 else 1  # what is drawn is drawn anew
        times = count // each_gives

        def work(prompts: list[str], numbers: list[int], progress: Callable[[int], None]) -> Iterable[str]:
            if world.first and numbers[0] == 0 and engine is EngineName.regard:
                say_what_it_costs(generator.forms, len(prompts))
            say_if_long(prompts)
            found = generator.generate_all(
                [each for each in prompts for _ in range(times)],
                limit=length,
                decode=decode,
                stops=stop or (),
                wish=wish,
                alternatives=alternatives,
                numbers=[first + more for first in numbers for more in range(times)],
                progress=progress,
            )
            lines = [_lines(each, each_gives, as_json, generator) for each in found]
            return ("\n".join(chain(*lines[at : at + times])) for at in range(0, len(lines), times))

        work_through(prompt, file, output, "prompts", work, things=lambda line: times, world=world)


def _opened_in_ctranslate2(model: str, where: "torch.device", scored: bool) -> "Generator":
    from regard.task.ctranslate2 import CTranslate2Generator
    from regard.task.generator import load_generator

    return CTranslate2Generator(load_generator(model), model, where, scored=scored)


def _teller_of_long_prompts(generator: "Generator") -> Callable[[Iterable[str]], None]:
    """What says, once, that a prompt is longer than anything the model has learned from."""
    learnt = _learnt_at_once(generator)

    def say_if_long(prompts: Iterable[str]) -> None:
        nonlocal learnt
        for prompt in prompts:
            if learnt is None:
                return
            # A token has a byte at least, so that most prompts need not be cut into tokens for this.
            if len(prompt.encode()) > learnt and (tokens := len(generator.text.encode(prompt))) > learnt:
                print(
                    f"A prompt has {tokens:,} tokens, and this model was trained on {learnt:,} at once; what it writes "
                    "behind more than these may be worse.",
                    file=sys.stderr,
                )
                learnt = None

    return say_if_long


def _learnt_at_once(generator: "Generator") -> int | None:
    """Tokens of a row of training; None where that is not known, or positions beyond are refused anyway."""
    from regard.task import read_recipe
    from regard.task.language_recipe import LanguageRecipe

    if generator.room is not None or generator.place is None or not (generator.place / "recipe.toml").is_file():
        return None
    try:
        recipe = read_recipe(generator.place)
    except UserError:  # of another version: that is no reason not to write
        return None
    return recipe.data.context if isinstance(recipe, LanguageRecipe) else None


def _stream(generator: "Generator", prompt: str, length: int, decode: Any, stops: list[str]) -> None:
    pieces = generator.stream(prompt, limit=length, decode=decode, stops=stops)
    print(prompt + next(pieces, ""), end="", flush=True)  # nothing of a prompt that is refused
    for piece in pieces:
        print(piece, end="", flush=True)
    print()
    sys.stdout.flush()


def _lines(found: "list[Generated]", wanted: int, as_json: bool, generator: "Generator") -> list[str]:
    if as_json:
        return [json.dumps(_facts(one, generator), ensure_ascii=False) for one in found[:wanted]]
    return padded(((one.prompt + one.text).replace("\n", "\\n") for one in found), wanted)


def _facts(one: "Generated", generator: "Generator") -> dict[str, Any]:
    return {
        "prompt": one.prompt,
        "text": one.text,
        "log_probability": round(one.log_probability, 4),
        "score": round(one.score, 4),
        "tokens": token_facts(generator.text, one.tokens, one.steps, one.alternatives),
        "ended": one.ended,
    }
