"""Recomputing keeps less and changes no number: not a loss, not a gradient, not a step of a run."""

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
from regard.fast.packed_stack import PackedStack
from regard.fast.swift_training import FusedStack, for_training, recomputes_recorded
from regard.model import ModelConfig, StackConfig
from regard.model.feed_forward import FeedForward
from regard.model.stack import Stack, recomputed
from regard.run.tensors import read_tensors
from regard.task.reading import read_recipe
from regard.train.gradient import CapturedGradients, for_steps, in_precision
from regard.train.loop import Loop
from regard.train.loss import word_loss
from regard.train.lowered import Lowered
from regard.train.world import World
from tests.model.small_models import SAMPLES, VOCABULARY, encoder_decoder, ids, inputs, language_model, stack
from tests.train.ranks import Translating, cut_short, metrics, run_together, settings, trained
from tests.train.test_loop import Heard

CONFIGS = {f"{kind}, {name}": config for kind, configs in SAMPLES.items() for name, config in configs.items()}
SMALL, POST = stack(heads=2), stack(heads=1, order="post")
MODELS = {
    "language model": language_model(decoder=SMALL),
    "encoder-decoder": encoder_decoder(encoder=stack(heads=1, layers=1), decoder=SMALL),
    "shared memory": encoder_decoder(encoder=stack(heads=1, layers=1), decoder=SMALL, memory="shared"),
    "post-norm": encoder_decoder(encoder=POST, decoder=POST),
    "gated": language_model(decoder=stack(heads=2, activation="swiglu", norm="rms")),
    "frozen words": language_model(decoder=SMALL),
}

needs_numba = pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="needs numba")


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Triton's kernels be taken on a CPU."""
    pytest.importorskip("triton")
    monkeypatch.setattr("regard.fast.triton_switch.INTERPRETED", True)


def built(config: ModelConfig, dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(3)
    return config.build().to(dtype).train()


def lengths(given: tuple[Tensor, ...]) -> dict[str, Tensor]:
    """Padding on every side."""
    names = ("source_lengths", "target_lengths") if len(given) == 2 else ("lengths",)
    return {name: torch.tensor([side.shape[1], 2]) for name, side in zip(names, given, strict=True)}


def slopes(model: nn.Module, forward: Any, given: tuple[Tensor, ...]) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss and the gradients of one pass, which draws the same each time it is asked for."""
    model.zero_grad()
    torch.manual_seed(5)
    if isinstance(forward, Lowered):
        forward.refresh()
    loss = word_loss(forward(*given, **lengths(given)), given[-1], torch.tensor([given[-1].shape[1], 2]), 0.1).total
    after = torch.get_rng_state()
    loss.backward()
    assert torch.equal(torch.get_rng_state(), after)  # what is drawn later is the same, too
    if isinstance(forward, Lowered):
        forward.collect(first=True)
    return loss.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def check(model: nn.Module, make: Callable[[bool], Any], given: tuple[Tensor, ...]) -> None:
    (loss, wanted), (again, found) = (slopes(model, make(recompute), given) for recompute in (False, True))
    assert torch.equal(again, loss)
    assert found.keys() == wanted.keys()
    for name, slope in wanted.items():
        assert torch.equal(found[name], slope), name


def stacks(model: nn.Module) -> list[Stack]:
    return [part for part in model.modules() if isinstance(part, Stack)]


# The same numbers


@pytest.mark.parametrize("name", CONFIGS)
def test_the_plain_form_has_the_same_loss_and_gradients(name: str) -> None:
    model = built(CONFIGS[name], torch.float64)
    assert {type(part) for part in stacks(for_training(model, recompute=True))} == {Stack}
    check(model, lambda recompute: for_training(model, recompute=recompute), inputs(CONFIGS[name]))


@needs_numba
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("name", CONFIGS)
def test_the_form_for_a_cpu_has_the_same_loss_and_gradients(name: str, late: bool) -> None:
    model = built(CONFIGS[name])
    if "no residual" not in name:
        assert {type(part) for part in stacks(for_training(model, recompute=True))} == {PackedStack}
    check(model, lambda recompute: for_training(model, late=late, recompute=recompute), inputs(CONFIGS[name]))


@pytest.mark.parametrize("name", ["shared memory", "post-norm", "frozen words"])
@pytest.mark.usefixtures("interpreted")
def test_the_form_for_a_gpu_has_the_same_loss_and_gradients(name: str) -> None:
    model = built(MODELS[name])
    if name == "frozen words":
        model.vocabulary.requires_grad_(False)
    assert {type(part) for part in stacks(for_training(model, recompute=True))} == {FusedStack}
    check(model, lambda recompute: for_training(model, late=True, recompute=recompute), inputs(MODELS[name], tokens=4))


@pytest.mark.usefixtures("interpreted")
def test_texts_too_long_for_the_kernels_draw_the_same_from_the_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.fast.triton_training.LONGEST", 2)
    model = built(MODELS["encoder-decoder"])
    check(
        model, lambda recompute: for_training(model, recompute=recompute), inputs(MODELS["encoder-decoder"], tokens=4)
    )


@needs_numba
def test_texts_too_long_for_the_form_for_a_cpu_do_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.fast.packed_stack.LONGEST", 4)
    for name in ("encoder-decoder", "shared memory"):
        model = built(MODELS[name])
        check(model, lambda recompute, model=model: for_training(model, recompute=recompute), inputs(MODELS[name]))


# Other weights in the place of the model's, which are gone on the way back


@pytest.mark.parametrize("name", MODELS)
def test_copies_in_bf16_get_the_same_gradients(name: str) -> None:
    model = built(MODELS[name])
    check(model, lambda recompute: for_steps(model, "bf16", recompute=recompute), inputs(MODELS[name]))


@pytest.mark.parametrize("name", ["encoder-decoder", "gated"])
@pytest.mark.usefixtures("interpreted")
def test_copies_in_bf16_get_the_same_gradients_in_the_form_for_a_gpu(name: str) -> None:
    model = built(MODELS[name])
    check(model, lambda recompute: for_steps(model, "bf16", recompute=recompute), inputs(MODELS[name], tokens=4))


@pytest.mark.parametrize("name", MODELS)
def test_weights_cast_for_one_pass_get_the_same_gradients(name: str) -> None:
    model = built(MODELS[name])
    check(model, lambda recompute: in_precision(for_training(model, recompute=recompute), "bf16"), inputs(MODELS[name]))


@needs_numba
def test_weights_of_the_moment_are_taken_in_the_form_for_a_cpu() -> None:
    config = MODELS["shared memory"]
    model = built(config)

    def called(recompute: bool) -> Any:
        twin = for_training(model, recompute=recompute)

        def forward(*given: Tensor, **more: Tensor) -> Tensor:
            weights = {name: 1.5 * parameter for name, parameter in model.named_parameters()}
            scores: Tensor = torch.func.functional_call(twin, weights, given, more)
            return scores

        return forward

    check(model, called, inputs(config))


def test_the_weights_stay_in_their_place() -> None:
    model = built(MODELS["shared memory"])
    before = dict(model.named_parameters(remove_duplicate=False))
    slopes(model, for_steps(model, "bf16", recompute=True), inputs(MODELS["shared memory"]))
    after = dict(model.named_parameters(remove_duplicate=False))
    assert all(after[name] is parameter for name, parameter in before.items())


# Less is kept


class Alive(TorchDispatchMode):
    """Knows how many bytes are alive of all that was made while it looked, whoever holds them."""

    def __init__(self, known: list[Tensor]) -> None:
        super().__init__()
        self._seen = {StorageWeakRef(tensor.untyped_storage()): 0 for tensor in known}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        for tensor in trees.tree_leaves(made):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                self._seen.setdefault(StorageWeakRef(storage), storage.nbytes())
        return made

    @property
    def bytes(self) -> int:
        return sum(size for storage, size in self._seen.items() if not storage.expired())


def kept(model: nn.Module, forward: Any, given: tuple[Tensor, ...]) -> int:
    """Bytes between the way there and the way back, weights aside."""
    copies = forward.copies if isinstance(forward, Lowered) else []
    with Alive([*model.parameters(), *copies]) as alive:
        scores = forward(*given)
        size = alive.bytes
    del scores
    return size


def check_kept(config: ModelConfig, precision: str = "fp32", dtype: torch.dtype = torch.float32) -> None:
    model = built(config, dtype)
    given = tuple(ids(2, 12, VOCABULARY, seed=side) for side in range(2 if hasattr(model, "encoder") else 1))
    all_of_it, less = (
        kept(model, for_steps(model, precision, recompute=recompute), given) for recompute in (False, True)
    )
    assert less < all_of_it / 2


def deep(order: str) -> StackConfig:
    return stack(layers=4, heads=1, hidden=64, order=order)


@pytest.mark.parametrize("order", ["pre", "post"])
@pytest.mark.parametrize(("precision", "dtype"), [("fp32", torch.float64), ("bf16", torch.float32)], ids=str)
def test_the_plain_form_keeps_less(order: str, precision: str, dtype: torch.dtype) -> None:
    check_kept(language_model(decoder=deep(order)), precision, dtype)
    check_kept(encoder_decoder(decoder=deep(order), encoder=deep(order)), precision, dtype)


@needs_numba
@pytest.mark.parametrize("order", ["pre", "post"])
def test_the_form_for_a_cpu_keeps_less(order: str) -> None:
    check_kept(language_model(decoder=deep(order)))
    check_kept(encoder_decoder(decoder=deep(order), encoder=deep(order)))


@pytest.mark.parametrize("order", ["pre", "post"])
@pytest.mark.usefixtures("interpreted")
def test_the_form_for_a_gpu_keeps_less(order: str) -> None:
    check_kept(language_model(decoder=deep(order)))


@pytest.mark.parametrize("form", ["plain", pytest.param("cpu", marks=needs_numba), "gpu"])
@pytest.mark.parametrize("order", ["pre", "post"])
def test_one_layer_more_keeps_what_enters_it(order: str, form: str, request: pytest.FixtureRequest) -> None:
    if form == "gpu":
        request.getfixturevalue("interpreted")
    dtype = torch.float64 if form == "plain" else torch.float32
    sizes = []
    for layers in (2, 3):
        decoder = stack(layers=layers, order=order, heads=1)
        model = built(language_model(decoder=decoder, embedding={"dropout": 0.0}), dtype)
        sizes.append(kept(model, for_training(model, recompute=True), (ids(2, 6),)))
    assert sizes[1] - sizes[0] == 2 * 6 * model.config.width * dtype.itemsize


# What cannot be computed twice


def test_who_watches_sees_every_layer_once() -> None:
    model = built(language_model(decoder=stack(order="none")))
    seen: list[Tensor] = []
    for_training(model, recompute=True)(ids(2, 5), watch=lambda _, shares: seen.append(shares)).sum().backward()
    assert len(seen) == 2


def test_nothing_is_prepared_where_there_is_no_way_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.model.stack.checkpoint", None)
    model = built(MODELS["encoder-decoder"])
    with torch.no_grad():
        for_training(model, recompute=True)(*inputs(MODELS["encoder-decoder"]))


@pytest.mark.parametrize("draws", [False, True])
def test_a_recording_keeps_what_pytorch_draws_in(draws: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """There the state of the generator cannot be asked for. What draws from a seed is recomputed all the same."""
    checkpointed: list[bool] = []

    def spy(function: Callable[[Tensor], Tensor], x: Tensor, *, preserve_rng_state: bool, **_: Any) -> Tensor:
        checkpointed.append(preserve_rng_state)
        return function(x)

    class OnCuda(Tensor):
        is_cuda = True

    monkeypatch.setattr("torch.cuda.is_current_stream_capturing", lambda: True)
    monkeypatch.setattr("regard.model.stack.checkpoint", spy)
    x = torch.ones(2, 3).as_subclass(OnCuda)
    layer = nn.Linear(3, 3)
    assert torch.equal(recomputed(layer, [layer], x, draws=draws), layer(x))
    assert checkpointed == ([] if draws else [False])


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize(
    ("changes", "longest", "wanted"),
    [
        ({}, 128, False),
        ({}, 4, True),
        ({"dropout": 0.0}, 4, False),
        ({"activation": "swiglu"}, 128, True),
        ({"activation": "swiglu", "dropout": 0.0}, 128, False),
    ],
    ids=str,
)
def test_the_form_for_a_gpu_knows_where_pytorch_draws(
    changes: dict[str, Any], longest: int, wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []

    def spy(*given: Any, draws: bool) -> tuple[Tensor, Tensor]:
        seen.append(draws)
        return given[3], given[4]

    monkeypatch.setattr("regard.fast.triton_training.LONGEST", longest)
    monkeypatch.setattr("regard.fast.swift_training.recomputed_pair", spy)
    for_training(built(language_model(decoder=stack(**changes))), recompute=True)(ids(2, 5))
    assert seen == [wanted, wanted]


def test_only_a_plain_form_without_dropout_is_recorded() -> None:
    plain, still = (built(language_model(decoder=stack(order="none", dropout=share))).eval() for share in (0.1, 0.0))
    assert (recomputes_recorded(plain), recomputes_recorded(still)) == (False, True)


@needs_numba
def test_a_fast_form_with_dropout_is_recorded() -> None:
    assert recomputes_recorded(built(MODELS["encoder-decoder"]))


# Runs


@pytest.fixture(autouse=True)
def _without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    monkeypatch.setattr("os.fsync", lambda handle: None)


@pytest.mark.parametrize(
    ("precision", "dtype"), [("fp32", torch.float64), ("fp32", torch.float32), ("bf16", torch.float32)], ids=str
)
def test_a_run_takes_the_same_steps(tmp_path: Path, precision: str, dtype: torch.dtype) -> None:
    plain, recomputing = (
        trained(
            tmp_path / name,
            settings(precision=precision, recompute=name == "recomputing", accumulate=2),
            dtype=dtype,
            dropout=0.2,
        )
        for name in ("plain", "recomputing")
    )
    assert all(torch.equal(recomputing[name], weight) for name, weight in plain.items())
    assert metrics(tmp_path / "recomputing") == metrics(tmp_path / "plain")


def test_a_resumed_run_ends_with_the_same_weights(tmp_path: Path) -> None:
    config = settings(recompute=True)
    whole = trained(tmp_path / "whole", config, dtype=torch.float32, dropout=0.2)
    cut_short(tmp_path / "whole", tmp_path / "again")
    again = trained(tmp_path / "again", config, dtype=torch.float32, dropout=0.2, resume=True)
    assert all(torch.equal(again[name], weight) for name, weight in whole.items())


WAYS: dict[str, dict[str, Any]] = {
    "ddp": {"parallel": {"kind": "ddp"}},
    "ddp in bf16": {"parallel": {"kind": "ddp"}, "precision": "bf16"},
    "fsdp": {"parallel": {"kind": "fsdp"}},
    "fsdp in bf16": {"parallel": {"kind": "fsdp"}, "precision": "bf16"},
}


def two(world: World, folder: Path) -> None:
    computed: list[nn.Module] = []
    forward = FeedForward.forward

    def counted(self: FeedForward, *given: Any) -> Tensor:
        computed.append(self)
        return forward(self, *given)

    FeedForward.forward = counted  # type: ignore[method-assign]
    for way, changes in WAYS.items():
        for recompute in (False, True):
            computed.clear()
            config = settings(steps=4, accumulate=3, recompute=recompute, **changes)
            trained(folder / f"{way} {recompute}", config, world, dtype=torch.float32, dropout=0.2)
            (folder / f"{way} {recompute} {world.rank}.txt").write_text(str(len(computed)))


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recompute")
    run_together(two, folder)
    return folder


@pytest.mark.parametrize("way", WAYS)
def test_several_processes_take_the_same_steps(together: Path, way: str) -> None:
    found, wanted = (read_tensors(together / f"{way} {recompute}.safetensors") for recompute in (True, False))
    assert all(torch.equal(found[name], weight) for name, weight in wanted.items())
    assert metrics(together / f"{way} True") == metrics(together / f"{way} False")


@pytest.mark.parametrize("way", [way for way in WAYS if way != "ddp"])  # which takes the form for a CPU
def test_several_processes_compute_layers_twice(together: Path, way: str) -> None:
    once, twice = (int((together / f"{way} {recompute} 1.txt").read_text()) for recompute in (False, True))
    steps, passes, layers = 4, 3, 2
    assert twice == once + steps * passes * layers


# Settings and advice


def test_a_recipe_expects_the_same_with_it() -> None:
    recipe = read_recipe("multi30k-en-de", ["train.recompute=true"])
    assert recipe.train.recompute
    assert recipe.expect == read_recipe("multi30k-en-de").expect is not None


@pytest.mark.parametrize("recompute", [False, True])
def test_it_is_advised_where_memory_runs_out_unless_it_is_on(recompute: bool, tmp_path: Path) -> None:
    heard = Heard()
    loop = Loop(Translating(), settings(recompute=recompute), tmp_path, listener=heard)
    loop._cut_smaller(4)
    assert ("train.recompute=true" in heard.sentences[0]) is not recompute
    with pytest.raises(UserError, match="One row") as error:
        loop._cut_smaller(2)
    assert ("train.recompute=true" in str(error.value)) is not recompute


@pytest.mark.parametrize(("order", "captured"), [("none", False), ("pre", True)])
def test_a_plain_form_with_dropout_is_not_recorded_and_that_is_said(
    order: str, captured: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = Translating()
    task.model = built(encoder_decoder(decoder=stack(order=order)))
    heard = Heard()
    loop = Loop(task, settings(recompute=True), tmp_path, listener=heard)
    loop.device = torch.device("cuda")
    assert isinstance(loop._gradient_maker(), CapturedGradients) is captured
    assert len(heard.sentences) == (not captured)
