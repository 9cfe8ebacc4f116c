"""Record what examples/coreference.py prints: the attention of *it* in two sentences, and how *it* is translated.

    regard train tatoeba-en-fr
    python benchmarks/quality/coreference.py runs/tatoeba-en-fr

For "The animal didn't cross the street because it was too tired" and "… too wide", benchmarks/results/animal.json gets
the translations into French, the log-probabilities of *il* and *elle* after the same prefix, and the attention weights
of *it* in every head.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.common import write_results

EXAMPLE = Path(__file__).parents[2] / "examples" / "coreference.py"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="run folder of a translator from English to French")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sentences.json"
        subprocess.run([sys.executable, str(EXAMPLE), options.model, "--json", str(path)], check=True)
        sentences = json.loads(path.read_text(encoding="utf-8"))
    cases = [{"case": each.pop("sentence"), **each} for each in sentences]
    print(f"written: {write_results('animal', cases)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
