"""Which passes can be captured as CUDA graphs."""

import pytest
import torch

from regard.attention import RotaryConfig
from regard.cost import TrainingSetup, Workload
from regard.cost.estimate import estimate
from regard.model import LanguageModelConfig, StackConfig
from regard.train.cuda_graph_step import uncapturable_reason

SCALINGS = {
    "none": None,
    "linear": {"kind": "linear", "factor": 2.0},
    "yarn": {"kind": "yarn", "factor": 2.0, "original_max_length": 8},
    "dynamic": {"kind": "dynamic", "factor": 2.0, "original_max_length": 8},
    "longrope": {
        "kind": "longrope",
        "short_factors": [1.0, 1.0],
        "long_factors": [2.0, 2.0],
        "original_max_length": 8,
    },
}


@pytest.mark.parametrize("kind", list(SCALINGS))
def test_rotations_that_depend_on_the_length_are_not_captured(kind: str) -> None:
    """They read the length of each row from the device, which cannot be done while a graph is captured."""
    position = RotaryConfig(scaling=SCALINGS[kind])
    stack = StackConfig(layers=1, attention={"heads": 2}, feed_forward={"hidden": 8})
    config = LanguageModelConfig(vocab_size=9, width=8, decoder=stack, position=position)
    with torch.device("meta"):
        reason = uncapturable_reason(config.build(), activation_checkpointing=False)
    assert (reason is None) == (kind not in ("dynamic", "longrope"))
    assert reason is None or "longrope" in reason
    cost = estimate(config, Workload(1, 4), TrainingSetup("float32"))
    assert cost.supports_cuda_graphs == (reason is None)
