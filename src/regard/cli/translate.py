"""`regard translate`."""

import json
from collections.abc import Callable, Iterable
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
    Prefix,
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

    from regard.data.tokenizer import TextTokenizer
    from regard.decode import DecodeConfig
    from regard.decode.shortlist import Shortlist
    from regard.task import Translated, Translator


def translate(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A run folder, or a model that ships: en-tr.")],
    text: Annotated[list[str] | None, typer.Argument(metavar="[TEXT]...", help="Without it, standard input.")] = None,
    file: Annotated[list[Path] | None, typer.Option(help="Translate a file, line by line; .gz, .xz, .zst too.")] = None,
    output: Output = None,
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
    as_json: AsJson = False,
    alternatives: Alternatives = 0,
    shortlist: Annotated[
        bool, typer.Option("--shortlist", help="Score only words that the model's own shortlist holds plausible.")
    ] = False,
    shortlist_file: Annotated[
        Path | None, typer.Option(help="The same by a file that `regard shortlist` has made.")
    ] = None,
    kernels: Kernels = None,
    precision: Precision = PrecisionName.float32,
    device: Device = "auto",
    threads: Threads = None,
    engine: Engine = EngineName.regard,
    processes: Processes = None,
) -> None:
    """Translate text, files or standard input: a line in, a line out; paragraphs keep their layout."""
    with one_voice():
        if text and file:
            raise UserError("TEXT and --file both name what to translate; give one of the two.")
        alternatives = shown_alternatives(alternatives, as_json)
        draws = drawing(temperature, top_k, top_p, min_p, repetition, seed)
        if engine is EngineName.regard:
            if together and precision is not PrecisionName.float32:
                raise UserError("An ensemble computes in float32; leave out --precision, or --with.")
        elif shortlist or shortlist_file:
            raise UserError("CTranslate2 cannot use our shortlist; leave it out, or use --engine regard.")
        check_engine(engine, processes)
        start_others(processes, device, threads, partial_stays(output))
    with taking_part(device, threads, PATIENCE) as (world, place):
        from regard.task.translator import sentences_of
        from regard.task.words import make_wish

        if engine is EngineName.regard:
            translator = _opened(model, together or [], place)
            set_forms(translator.forms, kernels, precision)
            translator.shortlist = _shortlist(translator, model, shortlist, shortlist_file)
        else:
            where = ctranslate2_device(device, threads, seed)
            translator = _opened_in_ctranslate2(model, together or [], where, as_json)
        decode = _search(translator, beams, nbest, diverse, draws)
        wish = make_wish(translator.target_text, prefix=prefix, required=require or (), forbidden=forbid or ())
        if engine is EngineName.ctranslate2:
            check_for_ctranslate2(decode, wish, alternatives, kernels, precision)

        def work(lines: list[str], numbers: list[int], progress: Callable[[int], None]) -> Iterable[str]:
            if world.first and numbers[0] == 0 and engine is EngineName.regard and not together:
                say_what_it_costs(translator.forms, len(lines))
            found = translator.translate_all(
                lines, decode, progress, wish=wish, alternatives=alternatives, numbers=numbers
            )
            return ("\n".join(_shown(one, nbest, as_json, translator.target_text)) for one in found)

        work_through(text, file, output, "sentences", work, things=sentences_of, world=world)


def _opened(model: str, together: list[str], where: "torch.device") -> "Translator":
    from regard.task import load_translator

    translator = load_translator(model, where)
    return translator.joined([load_translator(name, where) for name in together]) if together else translator


def _shortlist(translator: "Translator", model: str, own: bool, given: Path | None) -> "Shortlist | None":
    from regard.task.shortlist import load_shortlist, own_shortlist

    if given is None and not own:
        return None
    return load_shortlist(given or own_shortlist(model), translator.source_text, translator.target_text)


def _opened_in_ctranslate2(model: str, together: list[str], where: "torch.device", scored: bool) -> "Translator":
    from regard.task import load_translator
    from regard.task.ctranslate2 import CTranslate2Translator

    if together:
        raise UserError("CTranslate2 cannot join models in an ensemble; leave out --with, or use --engine regard.")
    return CTranslate2Translator(load_translator(model), model, where, scored=scored)


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
    changes = {"beams": wanted, "outputs": nbest} | ({} if diverse is None else {"groups": diverse})
    return DecodeConfig.read(translator.decode.plain() | changes)


def _shown(one: "Translated", nbest: int, as_json: bool, tokenizer: "TextTokenizer") -> list[str]:
    if as_json:
        return [json.dumps(_facts(one, nbest, tokenizer), ensure_ascii=False)]
    return padded((one.candidate(number) for number in range(one.candidates)), nbest)


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
