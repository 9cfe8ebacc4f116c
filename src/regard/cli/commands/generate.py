"""`regard generate`."""

import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.decoding import (
    announce_compilation,
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
    NoRepeatNgramOption,
    OutputOption,
    RepetitionPenaltyOption,
    RequireOption,
    SeedOption,
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

    from regard.decode import Constraints, DecodeConfig
    from regard.task.language_modeling.pipeline import GeneratedText, TextGenerator

PromptArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="PROMPT", help="Texts to continue. Default: standard input, one prompt per line."),
]
FileOption = Annotated[
    list[Path] | None, typer.Option(help="Read prompts from a file, one per line; also .gz, .xz, .zst. Repeatable.")
]
BeamSizeOption = Annotated[
    int | None,
    typer.Option(
        min=1, max=1000, help="Beam size: search for the most likely text instead of sampling; 1 is greedy search."
    ),
]


def generate(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A run folder with a language model.")],
    prompt: PromptArgument = None,
    file: FileOption = None,
    output: OutputOption = None,
    max_new_tokens: Annotated[
        int, typer.Option(min=1, max=100_000_000, help="The maximum number of tokens to generate.")
    ] = 200,
    nbest: Annotated[
        int, typer.Option(min=1, max=1000, help="N-best: the number of continuations of each prompt.")
    ] = 1,
    beam_size: BeamSizeOption = None,
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
    stop: Annotated[
        list[str] | None, typer.Option(help="Stop sequence: generation ends before this text. Repeatable.")
    ] = None,
    require: RequireOption = None,
    forbid: ForbidOption = None,
    as_json: JsonOption = False,
    alternatives: AlternativesOption = 0,
    fused: FusedOption = None,
    dtype: DtypeOption = Dtype.float32,
    device: DeviceOption = "auto",
    threads: ThreadsOption = None,
    engine: EngineOption = Engine.regard,
    processes: ProcessesOption = None,
) -> None:
    """Continue a text with a language model.

    One prompt is streamed; for several, or standard input, each result is printed on a line.
    """
    sampling = sampling_settings(temperature, top_k, top_p, min_p, repetition_penalty, seed)
    with report_errors_once():
        if prompt and file:
            raise UserError("PROMPT and --file both name what to continue; give one of the two.")
        check_files(prompt, file, output, processes=processes)
        check_alternatives(alternatives, as_json)
        _check_search(beam_size, sampling, require)
        check_engine(engine, processes)
        changes = decode_changes(
            overrides,
            beam_size=beam_size,
            min_length=min_length,
            length_penalty=length_penalty,
            no_repeat_ngram_size=no_repeat_ngram,
        )
        decode = _decode_config(changes | {"nbest": nbest} | sampling)
        launch_processes(processes, device, threads, partial_output_note(output))
    with join_process_group(device, threads, TIMEOUT) as (process_group, own_device):
        from regard.task.constraints import make_constraints
        from regard.task.language_modeling.pipeline import TextGenerator

        if engine is Engine.regard:
            generator = TextGenerator.load(model, own_device)
            configure_backend(generator.backend, fused, dtype)
        else:
            generator = _load_ctranslate2(model, ctranslate2_device(device, threads, seed), scored=as_json)
        constraints = make_constraints(
            generator.tokenizer, required=require or (), forbidden=forbid or (), continues=True
        )
        if engine is Engine.ctranslate2:
            check_ctranslate2(decode, constraints, alternatives, fused, dtype)
        plain = not as_json and output is None and nbest == 1 and not (require or forbid) and decode.beam_size == 1
        if prompt and len(prompt) == 1 and plain and process_group.size == 1:
            _stream(generator, prompt[0], max_new_tokens, decode, stop or [])
            return
        announces = process_group.is_rank0 and engine is Engine.regard
        process = _PromptProcessor(
            generator, max_new_tokens, decode, nbest, stop or [], constraints, alternatives, as_json, announces
        )
        process_lines(
            prompt, file, output, "prompts", process, items_in=lambda line: process.repeats, process_group=process_group
        )


@dataclass(frozen=True)
class _PromptProcessor:
    """Continues each prompt `nbest` times and formats the continuations."""

    generator: "TextGenerator"
    max_new_tokens: int
    decode: "DecodeConfig"
    nbest: int
    stop: list[str]
    constraints: "Constraints"
    alternatives: int
    as_json: bool
    announces: bool
    """Whether this process announces the compilation of kernels."""

    @property
    def repeats(self) -> int:
        """The number of times that each prompt is decoded."""
        from regard.task.language_modeling.pipeline import samples_per_prompt

        return samples_per_prompt(self.decode, self.nbest)

    def __call__(self, prompts: list[str], numbers: list[int], progress: Callable[[int], None]) -> Iterable[str]:
        if self.announces and numbers[0] == 0:
            announce_compilation(self.generator.backend, len(prompts))
        self.warn_if_long(prompts)
        found = self.generator.generate_nbest(
            prompts,
            self.nbest,
            self.decode,
            seed_offsets=numbers,
            max_new_tokens=self.max_new_tokens,
            stop=self.stop,
            constraints=self.constraints,
            alternatives=self.alternatives,
            progress=progress,
        )
        return ("\n".join(_format(each, self.nbest, self.as_json, self.generator)) for each in found)

    @cached_property
    def warn_if_long(self) -> Callable[[Iterable[str]], None]:
        return _long_prompt_warning(self.generator)


def _check_search(beam_size: int | None, sampling: dict[str, Any], require: list[str] | None) -> None:
    if beam_size is not None and sampling:
        raise UserError("--beam-size searches instead of sampling; leave it out, or the sampling options.")
    if require and beam_size is None:
        raise UserError("--require needs beam search; add --beam-size 5.")


def _decode_config(options: dict[str, Any]) -> "DecodeConfig":
    from regard.task.language_modeling.pipeline import SAMPLING, generation_search

    try:
        return generation_search(SAMPLING, options)
    except UserError as error:
        raise UserError(f"decode.{error}") from None


def _load_ctranslate2(model: str, device: "torch.device", *, scored: bool) -> "TextGenerator":
    from regard.task.language_modeling.pipeline import TextGenerator
    from regard.task.translation.ctranslate2 import CTranslate2Generator

    return CTranslate2Generator(TextGenerator.load(model), model, device, scored=scored)


def _long_prompt_warning(generator: "TextGenerator") -> Callable[[Iterable[str]], None]:
    """A function that warns, once, about a prompt longer than the context the model was trained with."""
    context_length = generator.training_context_length()

    def warn(prompts: Iterable[str]) -> None:
        nonlocal context_length
        for prompt in prompts:
            if context_length is None:
                return
            # A token has at least one byte, so most prompts need not be tokenized for this.
            if len(prompt.encode()) <= context_length:
                continue
            if (tokens := len(generator.tokenizer.encode(prompt))) > context_length:
                print(
                    f"A prompt has {tokens:,} tokens, but this model was trained with a context of {context_length:,}; "
                    "its output may be worse beyond that.",
                    file=sys.stderr,
                )
                context_length = None

    return warn


def _stream(
    generator: "TextGenerator", prompt: str, max_new_tokens: int, decode: "DecodeConfig", stop: list[str]
) -> None:
    _long_prompt_warning(generator)([prompt])
    pieces = generator.stream(prompt, max_new_tokens=max_new_tokens, decode=decode, stop=stop)
    print(prompt + next(pieces, ""), end="", flush=True)  # a refused prompt prints nothing
    for piece in pieces:
        print(piece, end="", flush=True)
    print()
    sys.stdout.flush()


def _format(found: "list[GeneratedText]", count: int, as_json: bool, generator: "TextGenerator") -> list[str]:
    if as_json:
        from regard.task.json_records import generation_record

        return [json.dumps(generation_record(one, generator.tokenizer), ensure_ascii=False) for one in found[:count]]
    return pad_lines(((one.prompt + one.text).replace("\n", "\\n") for one in found), count)
