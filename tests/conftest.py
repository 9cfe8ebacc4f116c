"""Settings every test shares: reproducible property tests, one thread a worker, no word from the network."""

import gc
import math
import os
import random
from pathlib import Path
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


THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"
THINNED = {
    "attention/test_triton_latent.py::test_it_is_softmax_and_sum": 3,
    "cost/test_estimate.py::test_a_generated_token_takes_the_flops_pytorch_counts": 2,
    "cost/test_estimate.py::test_a_token_in_a_window_looks_at_all_its_slots": 3,
    "cost/test_estimate.py::test_activations_of_every_model_come_near_what_autograd_keeps": 2,
    "cost/test_estimate.py::test_backward_takes_twice_the_flops_of_forward": 2,
    "cost/test_estimate.py::test_forward_flops_are_those_pytorch_counts": 2,
    "cost/test_fast.py::test_what_is_kept_is_what_autograd_keeps": 2,
    "cost/test_fast.py::test_what_the_kernels_do_not_know_is_counted_as_in_the_plain_form": 2,
    "cost/test_readers.py::test_the_fast_form_keeps_what_autograd_keeps": 2,
    "cost/test_recompute.py::test_as_many_flops_more_are_said_as_pytorch_counts": 3,
    "cost/test_recompute.py::test_as_much_is_held_at_most_as_is_said": 4,
    "cost/test_recompute.py::test_the_fast_form_keeps_as_much_as_is_said": 3,
    "cost/test_recompute.py::test_the_plain_form_keeps_as_much_as_is_said": 3,
    "cost/test_recompute.py::test_the_plain_form_of_every_sample_keeps_about_as_much_as_is_said": 4,
    "data/test_sentences.py::test_time_is_linear_in_the_length": 4,
    "decode/test_required.py::test_every_output_contains_every_word": 2,
    "decode/test_tree_rule.py::test_a_model_that_always_wants_the_same_still_writes_trees": 2,
    "decode/test_triton_kernels.py::test_of_equal_candidates_the_first_is_taken": 3,
    "decode/test_triton_kernels.py::test_steps_of_beams_are_the_same": 3,
    "fast/test_swift_gpu.py::test_steps_give_the_same_logits": 2,
    "fast/test_swift_training.py::test_logits_and_gradients_are_the_same": 2,
    "fast/test_swift_training.py::test_the_loss_of_words_that_are_scored_late_is_the_same": 2,
    "interop/huggingface/test_export.py::test_a_model_that_was_imported_is_the_same_after_the_way_back": 2,
    "interop/huggingface/test_rope.py::test_logits_are_those_of_transformers": 2,
    "look/test_standalone.py::test_arrays_are_those_of_the_trace": 2,
    "look/test_standalone.py::test_the_page_carries_what_the_contract_says": 2,
    "model/test_encoder.py::test_the_fast_form_for_a_gpu_gives_the_same": 2,
    "model/test_every_model.py::test_padded_and_packed_rows_are_one_graph_to_the_compiler": 2,
    "model/test_every_model.py::test_the_model_is_one_graph_to_the_compiler": 3,
    "model/test_vision.py::test_the_fast_form_for_a_gpu_gives_the_same": 2,
    "model/test_writer.py::test_uneven_chunks_equal_uncached_for_every_pattern_layout_and_position": 3,
    "train/test_loop.py::test_a_killed_run_ends_with_the_weights_of_one_never_killed": 2,
    "train/test_loop.py::test_a_stopped_run_ends_with_the_weights_of_one_never_stopped": 2,
    "train/test_mover.py::test_weights_and_memory_are_those_of_the_optimiser": 2,
    "train/test_recompute.py::test_the_form_for_a_cpu_has_the_same_loss_and_gradients": 2,
}
"""Tests of many cases that take long, each much like the next: one in so many is run, the same ones everywhere.

HYPOTHESIS_PROFILE=thorough runs all of them, and many more examples of those that are drawn.
"""


def _thin(items: list[pytest.Item]) -> None:
    """Leave out some cases of the tests above."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        cases.setdefault(item.nodeid.partition("[")[0].removeprefix("tests/"), []).append(item)
    files = {name.partition("::")[0] for name in cases}
    asked = {name for name in THINNED if name.partition("::")[0] in files or not _is_there(name)}  # of some folders
    assert asked <= cases.keys(), f"no such test: {sorted(asked - cases.keys())}"
    left_out: set[pytest.Item] = set()
    for name in asked:
        drawn, every = cases[name], THINNED[name]
        left_out.update(random.Random(name).sample(drawn, len(drawn) - math.ceil(len(drawn) / every)))
    items[:] = [item for item in items if item not in left_out]


def _is_there(name: str) -> bool:
    return (Path(__file__).parent / name.partition("::")[0]).exists()


def pytest_collection_finish() -> None:
    """What is there before the first test stays to the end: Python need not look through it for garbage again."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        return next((number for number, name in enumerate(LONG) if item.nodeid.startswith(name)), len(LONG))

    items.sort(key=place)
    if not THOROUGH and len(items) > 1000:  # whoever asks for one file gets all of it
        _thin(items)
