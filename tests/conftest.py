"""Settings that all tests share: reproducible property tests, one thread per worker, no network."""

import gc
import math
import os
import random
from typing import Any

os.environ.setdefault("TRITON_INTERPRET", "1")  # Triton reads it when it is first imported

import pytest
import torch
from hypothesis import HealthCheck, settings

# Two workers on two cores: more threads would only compete with each other.
torch.set_num_threads(1)
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

settings.register_profile(
    "regard",
    deadline=None,  # the first call of a kernel is slow, and so is a busy machine
    derandomize=True,  # the same examples on every machine, so that only changed code can fail
    max_examples=25,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.register_profile("thorough", settings.get_profile("regard"), derandomize=False, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "regard"))


def _patch_interpreter_once_per_launch() -> None:
    """Let Triton's interpreter patch the language once per launch, not again in every function that a kernel calls.

    By default it patches `triton.language` for every function call, which takes longer than most of the arithmetic.
    """
    try:
        from triton.runtime import interpreter
    except ImportError:
        return
    patch_language, language = interpreter._patch_lang, (interpreter.tl, interpreter.tl.core)
    patched: set[Any] = set()
    scopes: list[Any] = []

    class LaunchScope(interpreter._LangPatchScope):
        """The scope of a launch: restores what it has patched, and what the functions it called have patched."""

        def restore(self) -> None:
            while scopes:
                scopes.pop().restore()
            patched.clear()

    def patch_once(function: Any) -> Any:
        needed = {value for value in function.__globals__.values() if any(value is one for one in language)}
        is_launch = not patched
        if not needed <= patched:
            scopes.append(patch_language(function))
            patched.update(needed)
        return LaunchScope() if is_launch else interpreter._LangPatchScope()

    interpreter._patch_lang = patch_once


_patch_interpreter_once_per_launch()

THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"


def _sampled(items: list[pytest.Item]) -> list[pytest.Item]:
    """All tests, but of those marked `one_in(n)` only every n-th case, drawn by the test's name."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("one_in") is not None:
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    skipped: set[pytest.Item] = set()
    for name, drawn in cases.items():
        marker = drawn[0].get_closest_marker("one_in")
        assert marker is not None
        skipped.update(random.Random(name).sample(drawn, len(drawn) - math.ceil(len(drawn) / marker.args[0])))
    return [item for item in items if item not in skipped]


def pytest_collection_finish() -> None:
    """Exclude everything imported so far from garbage collection, which makes the later collections faster."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start the slowest files first, so that no worker is left with one of them at the end."""

    def rank(item: pytest.Item) -> float:
        marker = item.get_closest_marker("start_early")
        return math.inf if marker is None else float(marker.args[0])

    items.sort(key=rank)
    if not THOROUGH and len(items) > 1000:  # a single file is always run in full
        items[:] = _sampled(items)
