"""Which device each worker has."""

import sys

from regard.errors import UserError


def worker_devices(workers: int, device: str) -> list[str]:
    """The devices of so many workers: a GPU each, or all of them the CPU."""
    if sys.platform == "win32":
        raise UserError("--workers is not available on Windows, where processes cannot share a socket; leave it out.")
    if device == "cpu":
        return ["cpu"] * workers
    import torch

    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        return ["cpu"] * workers
    if device != "cuda":
        raise UserError(f"--workers needs a device for each process; use --device cuda or cpu instead of {device}.")
    if workers > (count := torch.cuda.device_count()):
        raise UserError(
            f"{workers} workers need as many GPUs, but this machine has {count}; use fewer, or --device cpu."
        )
    return [f"cuda:{number}" for number in range(workers)]
