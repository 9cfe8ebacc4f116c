"""Models before the Transformer against other implementations, given the same weights.

    python benchmarks/before_peers.py --peers FOLDER

Peers are old and pin old packages, so they are installed without their dependencies, in a folder of their own:

    pip install --no-deps --target FOLDER fairseq-fixed==0.12.3.1 omegaconf==2.3 hydra-core==1.3.2 \
        antlr4-python3-runtime==4.9.3 bitarray scikit-learn scipy joblib narwhals threadpoolctl cloudpickle \
        joeynmt==2.3.0 importlib_metadata==8.7.0 zipp pyyaml subword-nmt sentencepiece sacrebleu portalocker regex \
        tabulate colorama matplotlib contourpy cycler fonttools kiwisolver pyparsing python-dateutil six pillow \
        packaging keras==3.15.1 absl-py namex optree ml-dtypes h5py rich

Each module in `benchmarks/peers` compares with one of their models and says where the architectures coincide. Its
`compare` gives cases: the largest absolute differences of what both compute in float32 (logits, attention weights,
encoder outputs), the largest difference of gradients relative to the largest gradient, and seconds per call. Add a
module to compare with another one.
"""

import argparse
import importlib.metadata
import logging
import sys
import warnings
from pathlib import Path
from typing import Any

from benchmarks.common import log, write_results
from benchmarks.peers import fairseq_fconv, fairseq_lstm, joeynmt_recurrent, keras_attention

PEERS = {
    "fairseq-fixed": (fairseq_fconv.compare, fairseq_lstm.compare),
    "joeynmt": (joeynmt_recurrent.compare,),
    "keras": (keras_attention.compare,),
}
"""The comparisons by the name of the peer's distribution."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, required=True, help="the folder in which the peers are installed")
    parser.add_argument("--only", choices=sorted(PEERS), help="compare with this peer only; no results are written")
    args = parser.parse_args()
    sys.path.append(str(args.peers))
    logging.disable(logging.INFO)
    warnings.simplefilter("ignore")  # peers use what PyTorch has deprecated since
    cases: list[dict[str, Any]] = []
    for peer, comparisons in PEERS.items():
        if args.only in (None, peer):
            version = importlib.metadata.version(peer)
            for compare in comparisons:
                cases.extend(log({"peer": peer, **case, "version": version}) for case in compare())
    if args.only is None:
        print(f"Results written to {write_results('before-peers', cases)}")
    return 0 if all(case["equal"] for case in cases) else 1


if __name__ == "__main__":
    sys.exit(main())
