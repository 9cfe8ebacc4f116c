"""What *it* looks at in "The animal didn't cross the street because it was too tired", or too wide.

    regard train tatoeba-en-fr
    python benchmarks/animal.py runs/tatoeba-en-fr

Keeps what `examples/animal.py` finds in a trained translator from English to French: both translations, how likely *il*
and *elle* are behind the same beginning, and the row of *it* in every head.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from common import write_results

EXAMPLE = Path(__file__).parent.parent / "examples" / "animal.py"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="run folder of a translator")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "found.json"
        subprocess.run([sys.executable, str(EXAMPLE), options.model, "--json", str(file)], check=True)
        found = json.loads(file.read_text(encoding="utf-8"))
    cases = [{"case": each.pop("sentence"), **each} for each in found]
    print(f"written: {write_results('animal', cases)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
