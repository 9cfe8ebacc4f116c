"""The vectors of *bank* beside a river and beside money, in every layer of some runs.

    python benchmarks/quality/banks.py --bilstm RUN… --encoder RUN…

The sentences and cosines are those of examples/banks.py. For comparison there are static vectors, counted from the
shipped passages of the Brown corpus (PPMI and SVD). The results are written to benchmarks/results/banks.json.
"""

import argparse
import sys

from benchmarks.common import log, write_results
from benchmarks.quality.frozen_vectors import PPMI_WIDTH, read_data, training_of
from examples.banks import similarities

import regard
from regard.lab.compare.word_vectors import ppmi_vectors
from regard.model.before.word_vectors.keyed_vectors import KeyedVectors


class StaticVectors(regard.Pipeline):
    """Vectors of words as a pipeline."""

    def __init__(self, keyed: KeyedVectors) -> None:
        self.keyed = keyed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bilstm", nargs="*", default=[], metavar="RUN", help="runs of bidirectional language models")
    parser.add_argument("--encoder", nargs="*", default=[], metavar="RUN", help="runs of encoders")
    options = parser.parse_args()
    words, vectors = ppmi_vectors(read_data()[0]["train"].texts, PPMI_WIDTH)
    static = StaticVectors(KeyedVectors(words, vectors.numpy()))
    cases = [log({"case": "PPMI", "kind": "static", "layers": layers_of(static)})]
    for kind, runs in (("bilstm", options.bilstm), ("encoder", options.encoder)):
        for number, run in enumerate(runs, start=1):
            facts = training_of([run])
            cases.append(
                log({"case": f"{kind} {number}", "kind": kind, "layers": layers_of(regard.load(run)), **facts})
            )
    write_results("banks", cases)
    return 0


def layers_of(pipeline: regard.Pipeline) -> list[dict[str, float | None]]:
    """The cosines in every layer."""
    return [
        {key: None if value is None else round(value, 4) for key, value in each._asdict().items()}
        for each in similarities(pipeline)
    ]


if __name__ == "__main__":
    sys.exit(main())
