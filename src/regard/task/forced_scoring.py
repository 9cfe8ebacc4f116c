"""Forced scores of a file: how probable a model finds each given translation, or each line of a text.

Nothing is searched: the given tokens are fed to the model (teacher forcing). Files of any length are read in chunks,
whose lines are sorted by length and batched; the scores come in the order of the lines.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from regard.data.text.corpus import CorpusConfig, read_corpus
from regard.data.text.lines import read_lines
from regard.data.text.pairs import Pair
from regard.errors import UserError
from regard.task.auto import open_model
from regard.task.language_modeling.pipeline import TextGenerator
from regard.task.translation.pipeline import Translator
from regard.train.distributed.process_group import SINGLE_PROCESS, ProcessGroup

CHUNK_LINES = 4000
"""Lines that are sorted by length at a time."""
_MAX_EXPONENT = 709  # exp of more overflows a float


@dataclass(frozen=True)
class ForcedScore:
    """A given text, the source that it is a translation of (if it is one), and the log-probability of each token."""

    source: str | None
    text: str
    tokens: tuple[str, ...]
    """The text of each token that is predicted; empty for the end token of a translation."""
    token_logprobs: tuple[float, ...]

    @property
    def logprob(self) -> float:
        """The log-probability of the text: the sum over its tokens."""
        return sum(self.token_logprobs)

    @property
    def perplexity(self) -> float:
        """exp(−logprob / tokens); not a number if no token is predicted."""
        if not self.token_logprobs:
            return math.nan
        loss = -self.logprob / len(self.token_logprobs)
        return math.exp(loss) if loss < _MAX_EXPONENT else math.inf

    def record(self) -> dict[str, Any]:
        """As plain data."""
        texts = {"text": self.text} if self.source is None else {"source": self.source, "target": self.text}
        pairs = zip(self.tokens, self.token_logprobs, strict=True)
        return texts | {
            "logprob": round(self.logprob, 4),
            "perplexity": round(self.perplexity, 4) if math.isfinite(self.perplexity) else None,
            "tokens": [{"text": text, "logprob": round(logprob, 4)} for text, logprob in pairs],
        }


def score_given(
    model: str | Path,
    data: CorpusConfig,
    *,
    device: torch.device | str = "cpu",
    process_group: ProcessGroup = SINGLE_PROCESS,
    progress: Callable[[int], None] | None = None,
) -> Iterator[ForcedScore]:
    """The forced score of each pair in a file, for a translator, or of each line, for a language model.

    `progress` is called with the number of finished lines. Several processes share each chunk, and all of them get all
    scores.
    """
    scorer = open_model(model, device)
    if isinstance(scorer, Translator):
        lines: Iterator[Pair | str] = iter(read_corpus(data))
    elif isinstance(scorer, TextGenerator):
        lines = _read_text(data)
    else:
        raise UserError(f"{model} does not generate text, so it gives no probability to one; leave out --logprobs.")
    done = 0
    while chunk := list(islice(lines, CHUNK_LINES * process_group.size)):

        def report(finished: int, before: int = done) -> None:
            if progress is not None:
                progress(before + finished * process_group.size)

        shard = process_group.shard(chunk)
        scored = score_lines(scorer, shard, report) if shard else []
        plain = process_group.gather_interleaved([(one.tokens, one.token_logprobs) for one in scored])
        for line, (tokens, logprobs) in zip(chunk, plain, strict=True):
            yield ForcedScore(*_source_and_text(line), tuple(tokens), tuple(logprobs))
        done += len(chunk)


def score_lines(
    scorer: Translator | TextGenerator, lines: Sequence[Pair | str], progress: Callable[[int], None] | None = None
) -> list[ForcedScore]:
    """The forced score of each pair, for a translator, or of each text, for a language model."""
    sides = [_source_and_text(line) for line in lines]
    texts = [text for _, text in sides]
    if isinstance(scorer, Translator):
        tokenizer = scorer.target_tokenizer
        found = scorer.score([source or "" for source, _ in sides], texts, progress=progress)
    else:
        tokenizer, found = scorer.tokenizer, scorer.score(texts, progress=progress)
    scored = []
    for (source, text), ids, logprobs in zip(sides, tokenizer.encode_batch(texts), found, strict=True):
        # A translation has an end token more; a language model may not predict the first token.
        predicted = ids[max(len(ids) - len(logprobs), 0) :]
        tokens = [*tokenizer.decode_batch([[token] for token in predicted]), ""]
        scored.append(ForcedScore(source, text, tuple(tokens[: len(logprobs)]), tuple(logprobs)))
    return scored


def _source_and_text(line: Pair | str) -> tuple[str | None, str]:
    return (line.source, line.target) if isinstance(line, Pair) else (None, line)


def _read_text(data: CorpusConfig) -> Iterator[str]:
    path, target = data.paths()
    if target is not None:
        raise UserError("A language model scores the lines of one file; give --data instead of --source.")
    empty = True
    for line in read_lines(path):
        empty = False
        yield line
    if empty:
        raise UserError(f"{path}: there is no line to score; at least one is needed.")
