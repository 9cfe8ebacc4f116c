"""Activation checkpointing stores fewer activations and gives bit-identical losses, gradients and training steps."""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as trees
from torch.utils._python_dispatch import TorchDispatchMode

from regard import UserError
from regard.fused.cpu_stack import CpuStack
from regard.fused.cuda_stack import CudaStack
from regard.fused.training import can_capture_checkpointing, fuse_for_training
from regard.model import ModelConfig, StackConfig
from regard.model.activation_checkpointing import checkpointed
from regard.model.feed_forward import FeedForward
from regard.model.stack import Stack
from regard.run.tensors import read_tensors
from regard.task.recipe_io import read_recipe
from regard.train.cuda_graph_step import CudaGraphStep
from regard.train.distributed.process_group import ProcessGroup
from regard.train.loss import cross_entropy
from regard.train.mixed_precision import MixedPrecisionModel
from regard.train.step import forward_in_precision, training_forward
from regard.train.trainer import Trainer
from tests.model.small_models import SAMPLES, VOCAB_SIZE, encoder_decoder, ids, inputs, language_model, stack
from tests.train.distributed.ranks import Translating, metrics, run_in_processes, settings, trained
from tests.train.toy import LogRecorder

pytestmark = pytest.mark.start_early(10)

CONFIGS = {f"{kind}, {name}": config for kind, configs in SAMPLES.items() for name, config in configs.items()}
SMALL, POST = stack(heads=2), stack(heads=1, norm_position="post")
MODELS = {
    "language model": language_model(decoder=SMALL),
    "encoder-decoder": encoder_decoder(encoder=stack(heads=1, layers=1), decoder=SMALL),
    "shared memory": encoder_decoder(encoder=stack(heads=1, layers=1), decoder=SMALL, cross_kv="shared"),
    "post-norm": encoder_decoder(encoder=stack(heads=1, layers=1, norm_position="post"), decoder=POST),
    "gated": language_model(decoder=stack(heads=2, activation="swiglu", norm="rms")),
    "frozen embedding": language_model(decoder=SMALL),
}

needs_numba = pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="needs numba")


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use Triton's kernels on the CPU, in its interpreter."""
    pytest.importorskip("triton")
    monkeypatch.setattr("regard.kernels.dispatch.runs_triton", lambda device: True)


def built(config: ModelConfig, dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(3)
    return config.build().to(dtype).train()


def lengths(batch: tuple[Tensor, ...]) -> dict[str, Tensor]:
    """Lengths with padding on every side."""
    names = ("source_lengths", "target_lengths") if len(batch) == 2 else ("lengths",)
    return {name: torch.tensor([side.shape[1], 2]) for name, side in zip(names, batch, strict=True)}


def loss_and_grads(model: nn.Module, forward: Any, batch: tuple[Tensor, ...]) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss and the gradients of one pass, with the same dropout in every call."""
    model.zero_grad()
    torch.manual_seed(5)
    if isinstance(forward, MixedPrecisionModel):
        forward.refresh()
    loss = cross_entropy(forward(*batch, **lengths(batch)), batch[-1], torch.tensor([batch[-1].shape[1], 2]), 0.1).total
    after = torch.get_rng_state()
    loss.backward()
    assert torch.equal(torch.get_rng_state(), after)  # recomputation restores the RNG state
    if isinstance(forward, MixedPrecisionModel):
        forward.accumulate_grads(first=True)
    return loss.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def check_equal(model: nn.Module, make: Callable[[bool], Any], batch: tuple[Tensor, ...]) -> None:
    (expected_loss, expected), (actual_loss, actual) = (
        loss_and_grads(model, make(checkpointing), batch) for checkpointing in (False, True)
    )
    assert torch.equal(actual_loss, expected_loss)
    assert actual.keys() == expected.keys()
    for name, grad in expected.items():
        assert torch.equal(actual[name], grad), name


def stacks(model: nn.Module) -> list[Stack]:
    return [part for part in model.modules() if isinstance(part, Stack)]


# Losses and gradients


@pytest.mark.parametrize("name", CONFIGS)
def test_unfused_loss_and_gradients_are_the_same(name: str) -> None:
    model = built(CONFIGS[name], torch.float64)
    assert {type(part) for part in stacks(fuse_for_training(model, activation_checkpointing=True))} == {Stack}
    check_equal(
        model,
        lambda checkpointing: fuse_for_training(model, activation_checkpointing=checkpointing),
        inputs(CONFIGS[name]),
    )


@pytest.mark.one_in(2)
@needs_numba
@pytest.mark.parametrize("fused_loss", [False, True])
@pytest.mark.parametrize("name", CONFIGS)
def test_fused_cpu_loss_and_gradients_are_the_same(name: str, fused_loss: bool) -> None:
    model = built(CONFIGS[name])
    if "no residual" not in name:
        assert {type(part) for part in stacks(fuse_for_training(model, activation_checkpointing=True))} == {CpuStack}
    check_equal(
        model,
        lambda checkpointing: fuse_for_training(model, fused_loss=fused_loss, activation_checkpointing=checkpointing),
        inputs(CONFIGS[name]),
    )


@pytest.mark.parametrize("name", ["shared memory", "post-norm", "frozen embedding"])
@pytest.mark.usefixtures("interpreted")
def test_fused_cuda_loss_and_gradients_are_the_same(name: str) -> None:
    model = built(MODELS[name])
    if name == "frozen embedding":
        model.embed_tokens.requires_grad_(False)
    assert {type(part) for part in stacks(fuse_for_training(model, activation_checkpointing=True))} == {CudaStack}
    check_equal(
        model,
        lambda checkpointing: fuse_for_training(model, fused_loss=True, activation_checkpointing=checkpointing),
        inputs(MODELS[name], tokens=4),
    )


@pytest.mark.usefixtures("interpreted")
def test_sequences_too_long_for_cuda_kernels_have_the_same_dropout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.kernels.cuda.attention.MAX_LENGTH", 2)
    model = built(MODELS["encoder-decoder"])
    check_equal(
        model,
        lambda checkpointing: fuse_for_training(model, activation_checkpointing=checkpointing),
        inputs(MODELS["encoder-decoder"], tokens=4),
    )


@needs_numba
def test_sequences_too_long_for_cpu_kernels_have_the_same_dropout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.fused.cpu_stack.MAX_LENGTH", 4)
    for name in ("encoder-decoder", "shared memory"):
        model = built(MODELS[name])
        check_equal(
            model,
            lambda checkpointing, model=model: fuse_for_training(model, activation_checkpointing=checkpointing),
            inputs(MODELS[name]),
        )


# Substituted weights, which no longer exist during the backward pass


@pytest.mark.parametrize("name", MODELS)
def test_mixed_precision_gradients_are_the_same(name: str) -> None:
    model = built(MODELS[name])
    check_equal(
        model,
        lambda checkpointing: training_forward(model, "bfloat16", activation_checkpointing=checkpointing),
        inputs(MODELS[name]),
    )


@pytest.mark.parametrize("name", ["encoder-decoder", "gated"])
@pytest.mark.usefixtures("interpreted")
def test_mixed_precision_gradients_are_the_same_on_fused_cuda_kernels(name: str) -> None:
    model = built(MODELS[name])
    check_equal(
        model,
        lambda checkpointing: training_forward(model, "bfloat16", activation_checkpointing=checkpointing),
        inputs(MODELS[name], tokens=4),
    )


@pytest.mark.parametrize("name", MODELS)
def test_gradients_of_weights_cast_per_pass_are_the_same(name: str) -> None:
    model = built(MODELS[name])
    check_equal(
        model,
        lambda checkpointing: forward_in_precision(
            fuse_for_training(model, activation_checkpointing=checkpointing), "bfloat16"
        ),
        inputs(MODELS[name]),
    )


@needs_numba
def test_fused_cpu_kernels_use_substituted_weights() -> None:
    config = MODELS["shared memory"]
    model = built(config)

    def called(checkpointing: bool) -> Any:
        fused = fuse_for_training(model, activation_checkpointing=checkpointing)

        def forward(*batch: Tensor, **more: Tensor) -> Tensor:
            weights = {name: 1.5 * parameter for name, parameter in model.named_parameters()}
            logits: Tensor = torch.func.functional_call(fused, weights, batch, more)
            return logits

        return forward

    check_equal(model, called, inputs(config))


def test_parameters_are_not_replaced() -> None:
    model = built(MODELS["shared memory"])
    before = dict(model.named_parameters(remove_duplicate=False))
    loss_and_grads(
        model, training_forward(model, "bfloat16", activation_checkpointing=True), inputs(MODELS["shared memory"])
    )
    after = dict(model.named_parameters(remove_duplicate=False))
    assert all(after[name] is parameter for name, parameter in before.items())


# Fewer activations


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of all live tensors that were created while it is active."""

    def __init__(self, known: list[Tensor]) -> None:
        super().__init__()
        self._seen = {StorageWeakRef(tensor.untyped_storage()): 0 for tensor in known}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for tensor in trees.tree_leaves(result):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                self._seen.setdefault(StorageWeakRef(storage), storage.nbytes())
        return result

    @property
    def bytes(self) -> int:
        return sum(size for storage, size in self._seen.items() if not storage.expired())


def activation_bytes(model: nn.Module, forward: Any, batch: tuple[Tensor, ...]) -> int:
    """The bytes of live tensors between the forward and the backward pass, without weights."""
    copies = forward.copies if isinstance(forward, MixedPrecisionModel) else []
    with LiveBytes([*model.parameters(), *copies]) as live:
        logits = forward(*batch)
        size = live.bytes
    del logits
    return size


def check_fewer_activations(
    config: ModelConfig, precision: str = "float32", dtype: torch.dtype = torch.float32
) -> None:
    model = built(config, dtype)
    batch = tuple(ids(2, 12, VOCAB_SIZE, seed=side) for side in range(2 if hasattr(model, "encoder") else 1))
    plain, checkpointed_bytes = (
        activation_bytes(model, training_forward(model, precision, activation_checkpointing=checkpointing), batch)
        for checkpointing in (False, True)
    )
    assert checkpointed_bytes < plain / 2


def deep(norm_position: str) -> StackConfig:
    return stack(layers=4, heads=1, hidden=64, norm_position=norm_position)


@pytest.mark.parametrize("norm_position", ["pre", "post"])
@pytest.mark.parametrize(("precision", "dtype"), [("float32", torch.float64), ("bfloat16", torch.float32)], ids=str)
def test_unfused_model_stores_fewer_activations(norm_position: str, precision: str, dtype: torch.dtype) -> None:
    check_fewer_activations(language_model(decoder=deep(norm_position)), precision, dtype)
    check_fewer_activations(encoder_decoder(decoder=deep(norm_position), encoder=deep(norm_position)), precision, dtype)


@needs_numba
@pytest.mark.parametrize("norm_position", ["pre", "post"])
def test_fused_cpu_model_stores_fewer_activations(norm_position: str) -> None:
    check_fewer_activations(language_model(decoder=deep(norm_position)))
    check_fewer_activations(encoder_decoder(decoder=deep(norm_position), encoder=deep(norm_position)))


@pytest.mark.parametrize("norm_position", ["pre", "post"])
@pytest.mark.usefixtures("interpreted")
def test_fused_cuda_model_stores_fewer_activations(norm_position: str) -> None:
    check_fewer_activations(language_model(decoder=deep(norm_position)))


@pytest.mark.parametrize("backend", ["unfused", pytest.param("cpu", marks=needs_numba), "cuda"])
@pytest.mark.parametrize("norm_position", ["pre", "post"])
def test_one_more_layer_stores_only_its_input(norm_position: str, backend: str, request: pytest.FixtureRequest) -> None:
    if backend == "cuda":
        request.getfixturevalue("interpreted")
    dtype = torch.float64 if backend == "unfused" else torch.float32
    sizes = []
    for layers in (2, 3):
        decoder = stack(layers=layers, norm_position=norm_position, heads=1)
        model = built(language_model(decoder=decoder, embedding={"dropout": 0.0}), dtype)
        sizes.append(activation_bytes(model, fuse_for_training(model, activation_checkpointing=True), (ids(2, 6),)))
    assert sizes[1] - sizes[0] == 2 * 6 * model.config.width * dtype.itemsize


# Passes that are not recomputed


def test_observer_sees_every_layer_once() -> None:
    model = built(language_model(decoder=stack(residual=False)))
    seen: list[Tensor] = []
    fuse_for_training(model, activation_checkpointing=True)(
        ids(2, 5), attention_hook=lambda _, weights: seen.append(weights)
    ).sum().backward()
    assert len(seen) == 2


def test_nothing_is_checkpointed_without_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.model.activation_checkpointing.checkpoint", None)
    model = built(MODELS["encoder-decoder"])
    with torch.no_grad():
        fuse_for_training(model, activation_checkpointing=True)(*inputs(MODELS["encoder-decoder"]))


@pytest.mark.parametrize("preserve_rng", [False, True])
def test_captured_graph_keeps_activations_with_pytorch_dropout(
    preserve_rng: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """During capture the generator's state cannot be read. Dropout from a seed is recomputed all the same."""
    preserved: list[bool] = []

    def spy(function: Callable[[Tensor], Tensor], x: Tensor, *, preserve_rng_state: bool, **_: Any) -> Tensor:
        preserved.append(preserve_rng_state)
        return function(x)

    class OnCuda(Tensor):
        is_cuda = True

    monkeypatch.setattr("torch.cuda.is_current_stream_capturing", lambda: True)
    monkeypatch.setattr("regard.model.activation_checkpointing.checkpoint", spy)
    x = torch.ones(2, 3).as_subclass(OnCuda)
    layer = nn.Linear(3, 3)
    assert torch.equal(checkpointed(layer, [layer], x, preserve_rng=preserve_rng), layer(x))
    assert preserved == ([] if preserve_rng else [False])


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize(
    ("changes", "longest", "expected"),
    [
        ({}, 128, False),
        ({}, 4, True),
        ({"dropout": 0.0}, 4, False),
        ({"activation": "swiglu"}, 128, True),
        ({"activation": "swiglu", "dropout": 0.0}, 128, False),
    ],
    ids=str,
)
def test_fused_cuda_model_knows_where_pytorch_draws_dropout(
    changes: dict[str, Any], longest: int, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []

    def spy(*batch: Any, preserve_rng: bool) -> tuple[Tensor, Tensor]:
        seen.append(preserve_rng)
        return batch[3], batch[4]

    monkeypatch.setattr("regard.kernels.cuda.attention.MAX_LENGTH", longest)
    monkeypatch.setattr("regard.fused.cuda_stack.checkpointed_pair", spy)
    fuse_for_training(built(language_model(decoder=stack(**changes))), activation_checkpointing=True)(ids(2, 5))
    assert seen == [expected, expected]


def test_unfused_model_can_be_captured_only_without_dropout() -> None:
    dropout, no_dropout = (
        built(language_model(decoder=stack(residual=False, dropout=share))).eval() for share in (0.1, 0.0)
    )
    assert (can_capture_checkpointing(dropout), can_capture_checkpointing(no_dropout)) == (False, True)


@needs_numba
def test_fused_model_with_dropout_can_be_captured() -> None:
    assert can_capture_checkpointing(built(MODELS["encoder-decoder"]))


# Runs


@pytest.fixture(autouse=True)
def _no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monkeypatch.setattr("os.fsync", lambda handle: None)


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [("float32", torch.float64), ("float32", torch.float32), ("bfloat16", torch.float32)],
    ids=str,
)
def test_run_takes_the_same_steps(tmp_path: Path, precision: str, dtype: torch.dtype) -> None:
    plain, checkpointed = (
        trained(
            tmp_path / name,
            settings(precision=precision, activation_checkpointing=name == "checkpointing", grad_accumulation=2),
            dtype=dtype,
            dropout=0.2,
        )
        for name in ("plain", "checkpointing")
    )
    assert all(torch.equal(checkpointed[name], weight) for name, weight in plain.items())
    assert metrics(tmp_path / "checkpointing") == metrics(tmp_path / "plain")


SETUPS: dict[str, dict[str, Any]] = {
    "ddp": {"parallel": {"kind": "ddp"}},
    "ddp in bfloat16": {"parallel": {"kind": "ddp"}, "precision": "bfloat16"},
    "fsdp": {"parallel": {"kind": "fsdp"}},
    "fsdp in bfloat16": {"parallel": {"kind": "fsdp"}, "precision": "bfloat16"},
}


def train_in_two_processes(process_group: ProcessGroup, folder: Path) -> None:
    computed: list[nn.Module] = []
    forward = FeedForward.forward

    def counting_forward(self: FeedForward, *batch: Any) -> Tensor:
        computed.append(self)
        return forward(self, *batch)

    FeedForward.forward = counting_forward  # type: ignore[method-assign]
    for setup, changes in SETUPS.items():
        for checkpointing in (False, True):
            computed.clear()
            config = settings(steps=2, grad_accumulation=3, activation_checkpointing=checkpointing, **changes)
            trained(folder / f"{setup} {checkpointing}", config, process_group, dtype=torch.float32, dropout=0.2)
            (folder / f"{setup} {checkpointing} {process_group.rank}.txt").write_text(str(len(computed)))


@pytest.fixture(scope="module")
def distributed_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpointing")
    run_in_processes(train_in_two_processes, folder)
    return folder


@pytest.mark.parametrize("setup", SETUPS)
def test_distributed_steps_are_the_same(distributed_runs: Path, setup: str) -> None:
    actual, expected = (
        read_tensors(distributed_runs / f"{setup} {checkpointing}.safetensors") for checkpointing in (True, False)
    )
    assert all(torch.equal(actual[name], weight) for name, weight in expected.items())
    assert metrics(distributed_runs / f"{setup} True") == metrics(distributed_runs / f"{setup} False")


@pytest.mark.parametrize("setup", [setup for setup in SETUPS if setup != "ddp"])  # "ddp" runs on the fused CPU kernels
def test_distributed_layers_are_recomputed(distributed_runs: Path, setup: str) -> None:
    once, twice = (
        int((distributed_runs / f"{setup} {checkpointing} 1.txt").read_text()) for checkpointing in (False, True)
    )
    steps, passes, layers = 2, 3, 2
    assert twice == once + steps * passes * layers


# Settings and advice


def test_expected_scores_hold_with_activation_checkpointing() -> None:
    recipe = read_recipe("multi30k-en-de", ["train.activation_checkpointing=true"])
    assert recipe.train.activation_checkpointing
    assert recipe.expect == read_recipe("multi30k-en-de").expect is not None


@pytest.mark.parametrize("checkpointing", [False, True])
def test_out_of_memory_message_suggests_it_unless_enabled(checkpointing: bool, tmp_path: Path) -> None:
    logged = LogRecorder()
    trainer = Trainer(Translating(), settings(activation_checkpointing=checkpointing), tmp_path, callback=logged)
    trainer.splitter.split_further(1, max_rows=4)
    assert ("train.activation_checkpointing=true" in logged.messages[0]) is not checkpointing
    with pytest.raises(UserError, match="One row") as error:
        trainer.splitter.split_further(1, max_rows=2)
    assert ("train.activation_checkpointing=true" in str(error.value)) is not checkpointing


@pytest.mark.parametrize(("residual", "captured"), [(False, False), (True, True)])
def test_unfused_model_with_dropout_is_not_captured_and_the_log_says_so(
    residual: bool, captured: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = Translating()
    task.model = built(encoder_decoder(decoder=stack(residual=residual)))
    logged = LogRecorder()
    trainer = Trainer(task, settings(activation_checkpointing=True), tmp_path, callback=logged)
    trainer.device = torch.device("cuda")
    assert isinstance(trainer._make_train_step(), CudaGraphStep) is captured
    assert len(logged.messages) == (not captured)
