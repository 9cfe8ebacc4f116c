"""Settings every test shares: reproducible property tests, one thread a worker, no word from the network."""

import os
from typing import Any

os.environ.setdefault("TRITON_INTERPRET", "1")  # Triton reads it when it is imported, by whoever comes first

import pytest
import torch
from hypothesis import HealthCheck, settings

# Two workers on two cores: more threads would only fight each other.
torch.set_num_threads(1)
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

settings.register_profile(
    "regard",
    deadline=None,  # the first call of a kernel is slow, and a busy machine is no bug
    derandomize=True,  # the same examples on every machine: red means changed code
    max_examples=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.register_profile("thorough", settings.get_profile("regard"), derandomize=False, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "regard"))


def _spare_the_interpreter() -> None:
    """Let Triton's interpreter replace the language's functions once a launch, not again in every function called.

    It wraps what it has wrapped before, so that calls within calls grow slower and slower; all of our kernels use one
    and the same `triton.language`, which the launch has replaced already.
    """
    try:
        from triton.runtime import interpreter
    except ImportError:
        return

    usual = interpreter.InterpretedFunction.__call__

    def call(self: Any, *given: Any, **settings: Any) -> Any:
        if not self.fn.__module__.startswith("regard."):
            return usual(self, *given, **settings)
        try:
            return self.rewrite()(*given, **settings)
        except Exception as error:
            raise interpreter.InterpreterError(repr(error)) from error

    interpreter.InterpretedFunction.__call__ = call


_spare_the_interpreter()

LONG = (
    "tests/cli/test_processes.py",
    "tests/task/test_training.py",
    "tests/train/test_together.py",
    "tests/test_package.py",
    "tests/cli/test_torchrun.py",
    "tests/cli/test_score_processes.py",
    "tests/train/test_together_mesh.py",
    "tests/cli/test_train.py",
    "tests/page/",
    "tests/train/test_recompute.py",
    "tests/train/test_balance.py",
    "tests/fast/",
)
"""Files that take long, the longest first. Each is one worker's, so none of them may be the last to begin."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        return next((number for number, name in enumerate(LONG) if item.nodeid.startswith(name)), len(LONG))

    items.sort(key=place)
