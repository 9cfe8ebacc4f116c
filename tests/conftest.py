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
    max_examples=25,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.register_profile("thorough", settings.get_profile("regard"), derandomize=False, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "regard"))


def _spare_the_interpreter() -> None:
    """Let Triton's interpreter replace the language's functions once a launch, not again in every function called.

    It does so anew whenever a kernel calls a function, for as long as most of the arithmetic takes.
    """
    try:
        from triton.runtime import interpreter
    except ImportError:
        return
    usual, language = interpreter._patch_lang, (interpreter.tl, interpreter.tl.core)
    replaced: set[Any] = set()
    scopes: list[Any] = []

    class Whole(interpreter._LangPatchScope):
        """Of a launch: gives back what it has replaced, and what the functions that it called have."""

        def restore(self) -> None:
            while scopes:
                scopes.pop().restore()
            replaced.clear()

    def replace_once(function: Any) -> Any:
        needed = {value for value in function.__globals__.values() if any(value is one for one in language)}
        first = not replaced
        if not needed <= replaced:
            scopes.append(usual(function))
            replaced.update(needed)
        return Whole() if first else interpreter._LangPatchScope()

    interpreter._patch_lang = replace_once


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
