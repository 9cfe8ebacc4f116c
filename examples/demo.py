"""The demo of `make demo`: translate with the pretrained model, train a small one, and translate with that.

Each step is a command that you can also type yourself. The trained model is deleted at the end.
"""

import argparse
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
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    start = time.perf_counter()
    print("1. Translate English to Turkish with the pretrained model:")
    regard("translate", "en-tr", *SENTENCES)
    with tempfile.TemporaryDirectory() as folder:
        out = str(Path(folder) / "quick")
        print("\n2. Train your own translator on 26,157 pairs of short sentences, on this machine's CPU:")
        regard("train", "quick", "--out", out, "--device", "cpu")
        print("\n3. Translate sentences that it was not trained on:")
        regard("translate", out, *SHORT_SENTENCES)
    minutes = (time.perf_counter() - start) / 60
    print(f"\nThis took {minutes:.1f} minutes. Next, train on your own two files, with one sentence per line:")
    print("    regard train quick --source my.en --target my.tr --out my-translator")
    return 0


def regard(*arguments: str) -> None:
    """Print and run a command."""
    quoted = " ".join(f'"{argument}"' if " " in argument else argument for argument in arguments)
    print(f"$ regard {quoted}", flush=True)
    subprocess.run([sys.executable, "-m", "regard", *arguments], check=True)


if __name__ == "__main__":
    sys.exit(main())
