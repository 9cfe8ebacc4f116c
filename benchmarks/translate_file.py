"""Peak memory and speed of `regard translate` on a million-line file: translation streams it in constant memory.

    python benchmarks/translate_file.py

A small model with random weights, biased towards EOS so that its outputs are short, translates generated files of
100,000 and 1,000,000 lines, each in a separate process. Reported are peak memory, lines per second, and the number of
output lines, which must equal that of the input.
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
from benchmarks.common import log, word_level_tokenizer, write_results
from tokenizers.pre_tokenizers import WhitespaceSplit

from regard.attention import MultiHeadConfig
from regard.model import EncoderDecoderConfig, FeedForwardConfig, SpecialTokensConfig, StackConfig
from regard.run import save_model

VOCAB_SIZE, EOS = 500, 2
CHILD = """
import resource, sys
from regard.cli import main
try:
    main()
except SystemExit as error:
    assert not error.code, error.code
print("peak", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)
"""


def save_small_model(folder: Path) -> Path:
    stack = StackConfig(
        layers=1, attention=MultiHeadConfig(heads=2), feed_forward=FeedForwardConfig(hidden=64), dropout=0.0
    )
    special_tokens = SpecialTokensConfig(pad=0, bos=1, eos=EOS)
    torch.manual_seed(0)
    config = EncoderDecoderConfig(
        vocab_size=VOCAB_SIZE, width=32, encoder=stack, decoder=stack, special_tokens=special_tokens, output_bias=True
    )
    model = config.build().eval()
    with torch.no_grad():
        assert model.lm_head_bias is not None
        model.lm_head_bias[EOS] += 4
    tokenizer = word_level_tokenizer(VOCAB_SIZE)
    tokenizer.pre_tokenizer = WhitespaceSplit()
    return save_model(model, folder / "model", tokenizer=tokenizer)


def write_lines(path: Path, count: int) -> None:
    rng = random.Random(1)
    with path.open("w", encoding="utf-8") as file:
        for _ in range(count):
            file.write(" ".join(f"w{rng.randrange(3, VOCAB_SIZE)}" for _ in range(rng.randint(1, 12))) + "\n")


def translate(model: Path, source: Path, output: Path) -> tuple[float, int]:
    """Seconds, and the peak resident memory of the process in bytes."""
    command = [sys.executable, "-c", CHILD, "translate", str(model), "--file", str(source), "--output", str(output)]
    start = time.perf_counter()
    process = subprocess.run([*command, "--beam-size", "1"], stderr=subprocess.PIPE, text=True, check=True)
    seconds = time.perf_counter() - start
    (peak,) = (int(line.split()[1]) for line in process.stderr.splitlines() if line.startswith("peak "))
    return seconds, 1024 * peak


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--lines",
        type=int,
        default=1_000_000,
        help="lines of the larger file (default: 1000000); the smaller one has a tenth of them",
    )
    args = parser.parse_args()
    cases: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = save_small_model(folder)
        for count in (args.lines // 10, args.lines):
            source, output = folder / "source.txt", folder / "out.txt"
            write_lines(source, count)
            seconds, peak = translate(model, source, output)
            with output.open(encoding="utf-8") as file:
                written = sum(1 for _ in file)
            case = {"lines": count, "written": written, "lines_a_second": count / seconds, "peak_bytes": peak}
            cases.append(log({"case": f"{count:,} lines", **case}))
    print(f"Results written to {write_results('lines-cpu', cases)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
