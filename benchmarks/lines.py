"""Whether a file of a million lines streams through `regard translate` in constant memory.

    python benchmarks/lines.py

A small model with random weights, made to end its outputs early, translates a generated file of 100,000 lines and one
of 1,000,000, each in a process of its own: peak memory of both, and lines a second. The output must have as many lines
as the input.
"""

import argparse
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from common import say, write_results
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from regard.attention import HeadsConfig
from regard.model import EncoderDecoderConfig, FeedForwardConfig, StackConfig, TokensConfig
from regard.run import save

WORDS, END = 500, 2
CHILD = """
import resource, sys
from regard.cli import main
try:
    main()
except SystemExit as left:
    assert not left.code, left.code
print("peak", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)
"""


def small_model(folder: Path) -> Path:
    stack = StackConfig(
        layers=1, attention=HeadsConfig(heads=2), feed_forward=FeedForwardConfig(hidden=64), dropout=0.0
    )
    tokens = TokensConfig(padding=0, start=1, end=END)
    torch.manual_seed(0)
    config = EncoderDecoderConfig(
        vocabulary=WORDS, width=32, encoder=stack, decoder=stack, tokens=tokens, output_bias=True
    )
    model = config.build().eval()
    with torch.no_grad():
        assert model.output_bias is not None
        model.output_bias[END] += 4
    tokenizer = Tokenizer(WordLevel({f"w{number}": number for number in range(WORDS)}, unk_token="w3"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    return save(model, folder / "model", tokenizer=tokenizer)


def write_lines(path: Path, count: int) -> None:
    chance = random.Random(1)
    with path.open("w", encoding="utf-8") as file:
        for _ in range(count):
            file.write(" ".join(f"w{chance.randrange(3, WORDS)}" for _ in range(chance.randint(1, 12))) + "\n")


def translate(model: Path, source: Path, out: Path) -> tuple[float, int]:
    """Seconds, and the most bytes of memory the process ever held."""
    command = [sys.executable, "-c", CHILD, "translate", str(model), "--file", str(source), "--output", str(out)]
    begin = time.perf_counter()
    done = subprocess.run([*command, "--beams", "1"], stderr=subprocess.PIPE, text=True, check=True)
    seconds = time.perf_counter() - begin
    (peak,) = (int(line.split()[1]) for line in done.stderr.splitlines() if line.startswith("peak "))
    return seconds, 1024 * peak


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most", type=int, default=1_000_000)
    options = parser.parse_args()
    cases: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        model = small_model(folder)
        for count in (options.most // 10, options.most):
            source, out = folder / "source.txt", folder / "out.txt"
            write_lines(source, count)
            seconds, peak = translate(model, source, out)
            with out.open(encoding="utf-8") as file:
                written = sum(1 for _ in file)
            case = {"lines": count, "written": written, "lines_a_second": count / seconds, "peak_bytes": peak}
            cases.append(say({"case": f"{count:,} lines", **case}))
    print(f"written: {write_results('lines-cpu', cases)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
