"""What `make demo` shows: translate with the model that ships, train another from a file of pairs, translate with that.

Every step is a command you can type yourself; nothing is kept but what the commands print.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

SENTENCES = (
    "The cat ate the mouse.",
    "Where is the station?",
    "My brother lives in Ankara.",
    "I would like a cup of tea, please.",
)
SHORT_SENTENCES = ("What are you doing here?", "I don't want to go home.", "Tom is very happy today.")


def main() -> int:
    begin = time.perf_counter()
    print("1. English to Turkish, with the model that ships with regard:")
    regard("translate", "en-tr", *SENTENCES)
    with tempfile.TemporaryDirectory() as folder:
        out = str(Path(folder) / "quick")
        print("\n2. A translator of your own: from 26,157 pairs of short sentences, on this machine's CPU.")
        regard("train", "quick", "--out", out, "--device", "cpu")
        print("\n3. And what it makes of sentences it has never seen:")
        regard("translate", out, *SHORT_SENTENCES)
    print(
        f"\nThat took {(time.perf_counter() - begin) / 60:.1f} minutes. Next: your own two files, one sentence a line:"
    )
    print("    regard train quick --source my.en --target my.tr --out my-translator")
    return 0


def regard(*words: str) -> None:
    shown = " ".join(f'"{word}"' if " " in word else word for word in words)
    print(f"$ regard {shown}", flush=True)
    subprocess.run([sys.executable, "-m", "regard", *words], check=True)


if __name__ == "__main__":
    sys.exit(main())
