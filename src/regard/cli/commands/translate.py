"""`regard translate`."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.decoding import (
    announce_compilation,
    change_decode,
    check_alternatives,
    check_ctranslate2,
    check_engine,
    configure_backend,
    ctranslate2_device,
    decode_changes,
)
from regard.cli.lines import check_files, pad_lines, partial_output_note, process_lines
from regard.cli.options import (
    AlternativesOption,
    BeamSizeOption,
    DecodeOverridesOption,
    DeviceOption,
    Dtype,
    DtypeOption,
    Engine,
    EngineOption,
    ForbidOption,
    FusedOption,
    JsonOption,
    LengthPenaltyOption,
    MinLengthOption,
    MinPOption,
    ModelArgument,
    NoRepeatNgramOption,
    OutputOption,
    PrefixOption,
    RepetitionPenaltyOption,
    RequireOption,
    SeedOption,
    SplitOption,
    TemperatureOption,
    ThreadsOption,
    TopKOption,
    TopPOption,
    sampling_settings,
)
from regard.cli.processes import TIMEOUT, ProcessesOption, join_process_group, launch_processes, report_errors_once
from regard.errors import UserError

if TYPE_CHECKING:
    import torch

    from regard.data.tokenizers.tokenizer import TextTokenizer
    from regard.decode import Constraints, DecodeConfig
    from regard.task.translation.pipeline import Translator
    from regard.task.translation.result import TranslatedText


class ReplaceUnk(StrEnum):
    """What unknown words are replaced by."""

    copy = "copy"
    dictionary = "dictionary"


FileOption = Annotated[
    list[Path] | None, typer.Option(help="Translate a file, line by line; also .gz, .xz, .zst. Repeatable.")
]
BeamGroupsOption = Annotated[
    int | None, typer.Option(min=2, max=1000, help="Diverse beam search: the number of groups of beams.")
]
EnsembleOption = Annotated[
    list[str] | None,
    typer.Option(metavar="MODEL", help="Ensemble: another model to average probabilities with. Repeatable."),
]
ShortlistOption = Annotated[
    bool, typer.Option("--shortlist", help="Lexical shortlist: score only the words that the model's shortlist allows.")
]
ShortlistFileOption = Annotated[
    Path | None, typer.Option(help="Lexical shortlist in a file that `regard shortlist` has written.")
]
ReplaceUnkOption = Annotated[
    ReplaceUnk | None,
    typer.Option(
        "--replace-unk",
        help="Unknown words: replace them by copies of the source words that they are aligned with, or by their "
        "translations in the model's dictionary.",
    ),
]
DictionaryOption = Annotated[
    Path | None, typer.Option(help="Dictionary for --replace-unk, in a file that `regard dictionary` has written.")
]


def translate(
    model: ModelArgument,
    text: Annotated[
        list[str] | None, typer.Argument(metavar="TEXT", help="Texts to translate. Default: standard input.")
    ] = None,
    file: FileOption = None,
    output: OutputOption = None,
    beam_size: BeamSizeOption = None,
    nbest: Annotated[
        int | None,
        typer.Option(min=1, max=1000, help="N-best: the number of translations of each line, best first. Default: 1."),
    ] = None,
    beam_groups: BeamGroupsOption = None,
    prefix: PrefixOption = "",
    require: RequireOption = None,
    forbid: ForbidOption = None,
    temperature: TemperatureOption = None,
    top_k: TopKOption = None,
    top_p: TopPOption = None,
    min_p: MinPOption = None,
    repetition_penalty: RepetitionPenaltyOption = None,
    seed: SeedOption = None,
    min_length: MinLengthOption = None,
    length_penalty: LengthPenaltyOption = None,
    no_repeat_ngram: NoRepeatNgramOption = None,
    overrides: DecodeOverridesOption = None,
    split: SplitOption = None,
    ensemble: EnsembleOption = None,
    as_json: JsonOption = False,
    alternatives: AlternativesOption = 0,
    shortlist: ShortlistOption = False,
    shortlist_file: ShortlistFileOption = None,
    replace_unk: ReplaceUnkOption = None,
    dictionary: DictionaryOption = None,
    fused: FusedOption = None,
    dtype: DtypeOption = Dtype.float32,
    device: DeviceOption = "auto",
    threads: ThreadsOption = None,
    engine: EngineOption = Engine.regard,
    processes: ProcessesOption = None,
) -> None:
    """Translate text, files or standard input.

    Lines are translated one by one, and the layout of paragraphs is kept.
    """
    sampling = sampling_settings(temperature, top_k, top_p, min_p, repetition_penalty, seed)
    with report_errors_once():
        if text and file:
            raise UserError("TEXT and --file both name what to translate; give one of the two.")
        check_files(text, file, output, shortlist_file, dictionary, processes=processes)
        check_alternatives(alternatives, as_json)
        if sampling and ((beam_size or 1) > 1 or (nbest or 1) > 1 or beam_groups is not None):
            raise UserError("Sampling generates one output; leave out --beam-size, --nbest and --beam-groups.")
        _check_model_options(
            engine, dtype, ensembled=bool(ensemble), shortlisted=shortlist or shortlist_file is not None
        )
        check_engine(engine, processes)
        changes = decode_changes(
            overrides,
            beam_size=beam_size,
            nbest=nbest,
            beam_groups=beam_groups,
            min_length=min_length,
            length_penalty=length_penalty,
            no_repeat_ngram_size=no_repeat_ngram,
        )
        if replace_unk is not None or dictionary is not None:
            changes["replace_unk"] = _replace_unk(replace_unk, dictionary)
        launch_processes(processes, device, threads, partial_output_note(output))
    with join_process_group(device, threads, TIMEOUT) as (process_group, own_device):
        from regard.task.constraints import make_constraints
        from regard.task.translation.pipeline import split_text

        if engine is Engine.regard:
            translator = _load(model, ensemble or [], own_device, fused, dtype)
            _use_shortlist(translator, model, shortlist, shortlist_file)
            _use_dictionary(translator, dictionary)
        else:
            engine_device = ctranslate2_device(device, threads, seed)
            translator = _load_ctranslate2(model, ensemble or [], engine_device, scored=as_json)
        decode = change_decode(translator.decode, {"nbest": 1} | changes | sampling)
        nbest = decode.nbest or 1
        constraints = make_constraints(
            translator.target_tokenizer, prefix=prefix, required=require or (), forbidden=forbid or ()
        )
        if engine is Engine.ctranslate2:
            check_ctranslate2(decode, constraints, alternatives, fused, dtype)
        announces = process_group.is_rank0 and engine is Engine.regard and not ensemble
        splits = split is not False
        process = _LineProcessor(translator, decode, nbest, constraints, alternatives, splits, as_json, announces)

        def count(line: str) -> int:
            return len(split_text(line, splits).sentences)

        process_lines(text, file, output, "sentences", process, items_in=count, process_group=process_group)


@dataclass(frozen=True)
class _LineProcessor:
    """Translates lines and formats the translations."""

    translator: "Translator"
    decode: "DecodeConfig"
    nbest: int
    constraints: "Constraints"
    alternatives: int
    splits: bool
    """Whether lines are split into sentences."""
    as_json: bool
    announces: bool
    """Whether this process announces the compilation of kernels."""

    def __call__(self, lines: list[str], numbers: list[int], progress: Callable[[int], None]) -> Iterable[str]:
        translator = self.translator
        if self.announces and numbers[0] == 0:
            announce_compilation(translator.backend, len(lines))
        found = translator.translate_batch(
            lines,
            self.decode,
            progress,
            constraints=self.constraints,
            alternatives=self.alternatives,
            seed_offsets=numbers,
            split=self.splits,
        )
        return ("\n".join(_format(one, self.nbest, self.as_json, translator.target_tokenizer)) for one in found)


def _check_model_options(engine: Engine, dtype: Dtype, *, ensembled: bool, shortlisted: bool) -> None:
    if ensembled and dtype is not Dtype.float32 and engine is Engine.regard:
        raise UserError("An ensemble computes in float32; leave out --dtype, or --ensemble.")
    if shortlisted and engine is Engine.ctranslate2:
        raise UserError("CTranslate2 cannot use our shortlist; leave it out, or use --engine regard.")


def _load(model: str, others: list[str], device: "torch.device", fused: bool | None, dtype: Dtype) -> "Translator":
    from regard.task.translation.pipeline import Translator

    translator = Translator.load(model, device)
    if others:
        translator = translator.ensemble_with([Translator.load(name, device) for name in others])
    configure_backend(translator.backend, fused, dtype)
    return translator


def _load_ctranslate2(model: str, others: list[str], device: "torch.device", *, scored: bool) -> "Translator":
    from regard.task.translation.ctranslate2 import CTranslate2Translator
    from regard.task.translation.pipeline import Translator

    if others:
        raise UserError("CTranslate2 cannot decode with an ensemble; leave out --ensemble, or use --engine regard.")
    return CTranslate2Translator(Translator.load(model), model, device, scored=scored)


def _use_shortlist(translator: "Translator", model: str, enabled: bool, file: Path | None) -> None:
    from regard.task.translation.shortlist import find_shortlist, load_shortlist

    if enabled or file is not None:
        path = file or find_shortlist(model)
        translator.shortlist = load_shortlist(path, translator.source_tokenizer, translator.target_tokenizer)


def _replace_unk(chosen: ReplaceUnk | None, file: Path | None) -> str:
    """The setting of these options. A dictionary means looking words up in it."""
    if chosen is ReplaceUnk.copy and file is not None:
        raise UserError("--replace-unk copy looks up nothing; leave out --dictionary, or the word copy.")
    return (chosen or ReplaceUnk.dictionary).value


def _use_dictionary(translator: "Translator", file: Path | None) -> None:
    from regard.task.translation.unknown_words import load_dictionary

    if file is not None:
        translator.dictionary = load_dictionary(file)


def _format(one: "TranslatedText", nbest: int, as_json: bool, tokenizer: "TextTokenizer") -> list[str]:
    if as_json:
        from regard.task.json_records import translation_record

        return [json.dumps(translation_record(one, nbest, tokenizer), ensure_ascii=False)]
    return pad_lines(one.texts, nbest)
