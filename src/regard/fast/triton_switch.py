"""Where kernels written in Triton run: on NVIDIA GPUs, and in tests on a CPU, by Triton's interpreter."""

import torch

INTERPRETED = False
"""Whether they are taken on a CPU too. For that Triton must be imported with TRITON_INTERPRET=1 in the environment."""


def runs_on(device: torch.device) -> bool:
    return device.type == "cuda" or INTERPRETED
