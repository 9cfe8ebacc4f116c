"""What training takes where layers are computed again on the way back, against models that really do so."""

import gc
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from regard.attention import HeadsConfig, LatentConfig
from regard.attention.position import RotaryConfig
from regard.cost import HARDWARE, USABLE, Cost, Hardware, Report, Work, advice_for_memory, estimate
from regard.cost.effort import Part
from regard.cost.fast import draw_their_own, fast_parts, is_recordable
from regard.cost.forward import parts
from regard.cost.memory import batch_bytes
from regard.fast.swift_training import for_training, recomputes_recorded, stacked_weights
from regard.model import (
    EncoderDecoderConfig,
    FeedForwardConfig,
    LanguageModelConfig,
    ModelConfig,
    NormConfig,
    StackConfig,
    transformer_base,
)
from regard.model.experts import ExpertsConfig
from regard.train.loss import word_loss
from regard.train.lowered import Lowered
from tests.model.small_models import SAMPLES, with_first

ROWS, SOURCE, TARGET = 2, 7, 5
H200 = HARDWARE["h200"]


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Triton's kernels be taken on a CPU."""
    pytest.importorskip("triton")
    monkeypatch.setattr("regard.fast.triton_switch.INTERPRETED", True)


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the model be taken as it is written: what a CPU's fast form needs is not there."""
    monkeypatch.setattr("regard.fast.swift_training.find_spec", lambda name: None)


def stack(activation: str = "relu", dropout: float = 0.1, heads: dict[str, Any] | None = None, **more: Any) -> Any:
    attention = HeadsConfig(**{"heads": 4, "dropout": dropout, **(heads or {})})
    middle = FeedForwardConfig.read({"hidden": 48, "activation": activation, "dropout": dropout})
    return StackConfig(**{"layers": 2, "dropout": dropout} | more, attention=attention, feed_forward=middle)


def translator(kind: StackConfig, **more: Any) -> EncoderDecoderConfig:
    return EncoderDecoderConfig(**{"vocabulary": 60, "width": 32, "encoder": kind, "decoder": kind} | more)


def writer(kind: StackConfig, **more: Any) -> LanguageModelConfig:
    return LanguageModelConfig(vocabulary=60, width=32, decoder=kind, **more)


def latents(dropout: float = 0.1) -> StackConfig:
    heads = LatentConfig(heads=4, latent=12, head_width=6, value_width=10, dropout=dropout)
    kept: StackConfig = stack(dropout=dropout).model_copy(update={"attention": heads})
    return kept


def experts(dropout: float = 0.1, **more: Any) -> StackConfig:
    middle = ExpertsConfig(hidden=24, experts=5, dropout=dropout)
    kept: StackConfig = stack(dropout=dropout, **more).model_copy(update={"feed_forward": middle})
    return kept


KINDS: dict[str, ModelConfig] = {
    "pre-norm": translator(stack()),
    "post-norm": translator(stack(order="post")),
    "gated": translator(stack("swiglu")),
    "a deeper encoder": translator(stack(), encoder=stack(layers=4)),
    "one memory for all layers, fewer key heads": translator(stack(heads={"key_heads": 2}), memory="shared"),
    "cosine": translator(stack(heads={"similarity": "cosine"})),
    "latents": translator(latents()),
    "latents, one memory for all layers": translator(latents(), memory="shared"),
    "experts": translator(experts()),
    "wide layers before experts": translator(with_first(experts(layers=3), hidden=99)),
    "narrow layers before wide": writer(with_first(stack(layers=3), hidden=7, activation="gelu")),
    "language model": writer(stack()),
    "language model, post-norm, gelu": writer(stack("gelu", order="post")),
    "rms norm, no biases": writer(stack("silu", heads={"bias": False}, norm=NormConfig(kind="rms"))),
}
EVERY_KIND = pytest.mark.parametrize("config", KINDS.values(), ids=KINDS.keys())
EVERY_SAMPLE = pytest.mark.parametrize(
    "config",
    [
        pytest.param(config, id=f"{kind}, {name}")
        for kind, configs in SAMPLES.items()
        for name, config in configs.items()
    ],
)


def work_for(config: ModelConfig, rows: int = ROWS, source: int = SOURCE, target: int = TARGET, **more: Any) -> Work:
    return Work(rows, target, source if isinstance(config, EncoderDecoderConfig) else 0, **more)


def ids(config: ModelConfig) -> list[Tensor]:
    sizes = [config.vocabulary]
    if isinstance(config, EncoderDecoderConfig):
        sizes.insert(0, config.source_vocabulary or config.vocabulary)
    lengths = (SOURCE, TARGET)[-len(sizes) :]
    return [torch.randint(3, size, (ROWS, length)) for size, length in zip(sizes, lengths, strict=True)]


# What is kept


class Alive(TorchDispatchMode):
    """Knows how many bytes are alive of all numbers with fractions that were made while it looked: now, and at most."""

    def __init__(self, known: list[Tensor]) -> None:
        super().__init__()
        self._seen = {StorageWeakRef(tensor.untyped_storage()): 0 for tensor in known}
        self.most = 0

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), settings: Any = None) -> Any:
        made = function(*arguments, **(settings or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, Tensor) and tensor.is_floating_point():
                storage = tensor.untyped_storage()
                self._seen.setdefault(StorageWeakRef(storage), storage.nbytes())
        self.most = max(self.most, self._count())
        return made

    @property
    def bytes(self) -> int:
        gc.collect()  # Triton's interpreter leaves cycles behind
        return self._count()

    def _count(self) -> int:
        self._seen = {storage: size for storage, size in self._seen.items() if not storage.expired()}
        return sum(self._seen.values())


def kept_bytes(model: nn.Module, forward: Any, given: list[Tensor]) -> int:
    """Bytes between the way there and the way back, weights and the result left out. Ids are kept, too."""
    copies = forward.copies if isinstance(forward, Lowered) else []
    with Alive([*model.parameters(), *copies]) as alive:
        made = forward(*given)
        size = alive.bytes
    result: Tensor = made if isinstance(made, Tensor) else made.x
    return size - result.untyped_storage().nbytes() + sum(each.nbytes for each in given)


def both(sides: tuple[Part, Part]) -> Part:
    source, target = sides
    return Part(
        source.layers + target.layers,
        source.outside + target.outside,
        source.lasting + target.lasting,
        source.inside + target.inside,
    )


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize(
    ("config", "late"),
    [
        *(pytest.param(config, True, id=name) for name, config in KINDS.items()),
        *(pytest.param(config, False, id=f"{name}, scored at once") for name, config in list(KINDS.items())[::5]),
    ],
)
def test_the_fast_form_keeps_as_much_as_is_said(config: ModelConfig, late: bool) -> None:
    # The norm of latents, which no kernel knows, keeps float32 on a CPU whatever the precision.
    exact = isinstance(config.decoder.attention, LatentConfig)
    model = config.build().train()
    fast = for_training(model, late=late, recompute=True)
    forward = fast if exact else Lowered(fast, torch.float16, first=stacked_weights(fast) if late else ())
    said = both(fast_parts(config, ROWS, SOURCE, TARGET, "cpu", late=late)).lasting
    assert said.bytes("fp32" if exact else "bf16", "cpu") == kept_bytes(model, forward, ids(config))


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("memory", ["layer", "shared"])
def test_the_fast_form_keeps_as_much_of_long_texts_as_is_said(memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.fast.triton_training.LONGEST", 4)
    monkeypatch.setattr("regard.cost.fast.LONGEST", 4)
    config = translator(stack(), memory=memory)
    model = config.build().train()
    fast = for_training(model, late=True, recompute=True)
    forward = Lowered(fast, torch.float16, first=stacked_weights(fast))
    said = both(fast_parts(config, ROWS, SOURCE, TARGET, "cpu", late=True)).lasting
    assert said.bytes("bf16", "cpu") == kept_bytes(model, forward, ids(config))


@pytest.mark.usefixtures("written")
@EVERY_KIND
def test_the_plain_form_keeps_as_much_as_is_said(config: ModelConfig) -> None:
    model = config.build().train()
    said = both(parts(config, ROWS, SOURCE, TARGET, "cpu")).lasting
    assert said.bytes("fp32", "cpu") == kept_bytes(model, for_training(model, recompute=True), ids(config))


@pytest.mark.usefixtures("written")
@EVERY_SAMPLE
def test_the_plain_form_of_every_sample_keeps_about_as_much_as_is_said(config: ModelConfig) -> None:
    model = config.build().train()
    said = both(parts(config, ROWS, SOURCE, TARGET, "cpu")).lasting.bytes("fp32", "cpu")
    assert said == pytest.approx(kept_bytes(model, for_training(model, recompute=True), ids(config)), rel=0.05)


@pytest.mark.parametrize("form", ["plain", "fast"])
@EVERY_KIND
def test_a_single_layer_holds_as_much_on_the_way_back_as_if_it_were_kept(config: ModelConfig, form: str) -> None:
    """On a GPU, whose attention takes keys and values as they were made, or keeps them so."""
    values = config.plain()
    for name in {"encoder", "decoder"} & set(values):
        values[name] |= {"layers": 1, "first": None}
    single = type(config).read(values)
    shape = (single, ROWS, SOURCE, TARGET, "cuda")
    side = both(parts(*shape) if form == "plain" else fast_parts(*shape, late=True))
    assert (side.lasting + side.inside).bytes("bf16", "cuda") == side.whole.bytes("bf16", "cuda")


# When most is held


@pytest.mark.usefixtures("written")
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("kind", ["language model", "translator"])
@pytest.mark.parametrize("part", ["plain", "latents", "experts", "a wide first layer", "a narrow first layer"])
def test_as_much_is_held_at_most_as_is_said(part: str, kind: str, recompute: bool) -> None:
    """Of the plain form on a CPU; gradients of the weights are there beforehand."""
    changes: dict[str, Any] = {"feed_forward": FeedForwardConfig(hidden=128)}
    if part == "latents":
        changes["attention"] = latents().attention
    if part == "experts":
        changes["feed_forward"] = ExpertsConfig(hidden=64, experts=4, shared=1)
    layers = stack(layers=6).model_copy(update=changes)
    if "first layer" in part:
        layers = with_first(layers, hidden=256 if "wide" in part else 32)
    config = writer(layers) if kind == "language model" else translator(layers)
    work = work_for(config, 64, 16, 16)
    model = config.build().train()
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    weights = [
        tensor for parameter in model.parameters() for tensor in (parameter, parameter.grad) if tensor is not None
    ]
    given = [torch.randint(3, 60, (64, 16)) for _ in range(2 if work.source else 1)]
    with Alive(weights) as alive:
        word_loss(for_training(model, recompute=recompute)(*given), given[-1], None, 0.1).total.backward()
    cost = estimate(config, work, precision="fp32", device="cpu", recompute=recompute)
    said = cost.activations_bytes + cost.loss_bytes
    assert said == pytest.approx(alive.most + sum(each.nbytes for each in given), rel=0.07)


def base_cost(precision: Any = "bf16", recompute: bool = True, **work: Any) -> Cost:
    return estimate(transformer_base(32768), Work(768, 32, 32, **work), precision=precision, recompute=recompute)


def test_what_enters_each_layer_is_kept_and_the_inside_is_not() -> None:
    cells, layers, size = 768 * 32 * 512, 6, 2
    config = transformer_base(32768)
    kept = base_cost().activations_bytes
    entering, memory = 2 * layers * cells, layers * 2 * cells  # keys and values
    ids_and_sums = 2 * 768 * 32 * 8
    around = cells * size + (2 * 768 * 32 * 8 if config.decoder.order == "pre" else 0)  # the encoder's result
    assert kept == size * (entering + memory) + ids_and_sums + around


def test_the_inside_of_one_layer_counts_when_the_way_back_begins() -> None:
    """Beside the gradients of the last middle and of the table; a few words make the scores small."""
    config = writer(stack())
    shape = (config, 512, 0, 16)
    _, own = fast_parts(*shape, "cuda", late=True)
    kept, moment = batch_bytes(*shape, "bf16", "cuda", "fast", "late", recompute=True)
    assert kept == own.lasting.bytes("bf16", "cuda")
    assert moment == own.inside.bytes("bf16", "cuda") + 2 * (60 * 32 + 2 * 512 * 16 * 48)


def test_the_largest_inside_counts() -> None:
    large = stack().model_copy(update={"feed_forward": FeedForwardConfig(hidden=480)})
    config = translator(stack(), encoder=large)
    theirs, own = (side.inside.bytes("bf16", "cuda") for side in fast_parts(config, 64, 16, 16, "cuda", late=True))
    assert theirs > own
    _, moment = batch_bytes(config, 64, 16, 16, "bf16", "cuda", "fast", "late", recompute=True)
    assert moment == theirs + 2 * (60 * 32 + 2 * 64 * 16 * 48)


def test_scores_of_words_count_instead_where_they_take_more() -> None:
    assert base_cost().loss_bytes == base_cost(recompute=False).loss_bytes


@pytest.mark.parametrize("form", ["plain", "fast"])
@EVERY_KIND
def test_it_takes_less_memory(config: ModelConfig, form: Any) -> None:
    work = work_for(config, 64)
    all_of_it, less = (
        estimate(config, work, precision="bf16", form=form, recompute=recompute) for recompute in (False, True)
    )
    assert less.activations_bytes < all_of_it.activations_bytes
    assert less.memory < all_of_it.memory
    assert less.lasting_bytes == all_of_it.lasting_bytes


# Recorded passes


OWN: dict[str, tuple[ModelConfig, tuple[bool, bool]]] = {
    "short texts": (translator(stack()), (False, False)),
    "gated": (translator(stack("swiglu")), (True, True)),
    "gated without dropout": (translator(stack("swiglu", dropout=0.0)), (False, False)),
    "a gated decoder": (translator(stack(), decoder=stack("geglu")), (False, True)),
    "a cosine encoder": (translator(stack(), encoder=stack(heads={"similarity": "cosine"})), (True, False)),
    "rotary positions": (writer(stack(), position=RotaryConfig()), (False, True)),
    "rotary positions without dropout": (writer(stack(dropout=0.0), position=RotaryConfig()), (False, False)),
    "a window": (writer(stack(heads={"pattern": "sliding(3)"})), (False, True)),
    "no output": (writer(stack(heads={"output": False})), (False, True)),
    "latents in the decoder": (translator(stack(), decoder=latents()), (False, True)),
    "latents without dropout": (translator(latents(0.0)), (False, False)),
    "experts in the encoder": (translator(stack(), encoder=experts()), (True, False)),
    "experts without dropout": (writer(experts(0.0)), (False, False)),
}


def drawn_by_models(config: ModelConfig, monkeypatch: pytest.MonkeyPatch) -> tuple[bool, bool]:
    """Whether PyTorch draws in the encoder's layers and in the decoder's, as the fast form itself finds it."""
    seen: list[bool] = []

    def spy(*given: Any, draws: bool) -> tuple[Tensor, Tensor]:
        seen.append(draws)
        return given[3], given[4]

    monkeypatch.setattr("regard.fast.swift_training.recomputed_pair", spy)
    for_training(config.build().train(), recompute=True)(*ids(config))
    return any(seen[:-2]), any(seen[-2:])


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize(("config", "wanted"), OWN.values(), ids=OWN.keys())
def test_layers_that_draw_their_own_are_known(
    config: ModelConfig, wanted: tuple[bool, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert draw_their_own(config, SOURCE, TARGET) == wanted == drawn_by_models(config, monkeypatch)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize(("longest", "wanted"), [(4, (True, True)), (6, (True, True)), (7, (False, False))])
def test_layers_of_long_texts_draw_their_own(
    longest: int, wanted: tuple[bool, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("regard.fast.triton_training.LONGEST", longest)
    monkeypatch.setattr("regard.cost.fast.LONGEST", longest)
    config = translator(stack())
    assert draw_their_own(config, SOURCE, TARGET) == wanted == drawn_by_models(config, monkeypatch)


def test_a_recorded_pass_keeps_all_of_layers_that_draw_their_own() -> None:
    config = translator(stack(), decoder=stack("swiglu"))
    cost = estimate(config, work_for(config), precision="bf16", recompute=True)
    recorded, whole = cost.on(H200, captured=True), cost.anew(recompute=False)
    theirs, _ = fast_parts(config, ROWS, SOURCE, TARGET, "cuda", late=True)
    spared = (theirs.whole + theirs.lasting * -1).bytes("bf16", "cuda")
    assert cost.activations_bytes < recorded.activations_bytes == whole.activations_bytes - spared
    assert recorded.again == (cost.again[0], 0)
    assert cost.peak(H200, captured=True) == recorded.memory + recorded.beside(H200, captured=True)
    assert cost.describe(H200, captured=True) != cost.describe(H200)


def test_recording_changes_nothing_where_the_kernels_draw() -> None:
    cost = base_cost()
    assert cost.on(H200, captured=True) == replace(cost, recorded=True)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("dropout", [0.1, 0.0])
@pytest.mark.parametrize("orders", [("pre", "pre"), ("none", "pre"), ("post", "none")])
def test_what_can_be_recorded_is_known_without_a_model(orders: tuple[str, str], dropout: float) -> None:
    encoder, decoder = (stack(order=order, dropout=dropout) for order in orders)
    config = translator(decoder, encoder=encoder)
    wanted = recomputes_recorded(config.build().train())
    assert is_recordable(config) == wanted == ("none" not in orders or not dropout)
    assert estimate(config, work_for(config), precision="bf16", recompute=True).recordable == wanted
    assert estimate(config, work_for(config), precision="bf16").recordable


def test_several_processes_record_nothing() -> None:
    assert not estimate(transformer_base(100), Work(8, 4, 4), precision="bf16", processes=2).recordable


# Arithmetic and time


@pytest.mark.usefixtures("written")
@EVERY_SAMPLE
def test_as_many_flops_more_are_said_as_pytorch_counts(config: ModelConfig) -> None:
    counted = []
    for recompute in (False, True):
        model = config.build().train()
        with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
            for_training(model, recompute=recompute)(*ids(config)).sum().backward()
        counted.append(counter.get_total_flops())
    costs = [estimate(config, work_for(config), precision="fp32", recompute=each) for each in (False, True)]
    assert [cost.flops_per_step for cost in costs] == counted


def test_layers_take_a_third_more_and_the_rest_as_much() -> None:
    once, twice = base_cost(recompute=False, accumulate=3), base_cost(accumulate=3)
    cells, layers, width = 768 * 32, 6, 512
    outside = (
        2 * cells * width * 32768 + layers * 2 * cells * width * 2 * width
    )  # scores; keys and values of the source
    assert twice.forward_flops_per_step == once.forward_flops_per_step
    assert twice.flops_per_step - once.flops_per_step == once.forward_flops_per_step - 3 * outside
    source, target = twice.training_flops_per_token
    assert 3 * cells * (source + target) == pytest.approx(twice.flops_per_step)
    assert once.training_flops_per_token == tuple(3 * each for each in once.flops_per_token)


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("machine", ["h200", "cpu-2-cores"])
def test_it_takes_up_to_a_third_more_time(machine: str, captured: bool) -> None:
    once, twice = (base_cost(recompute=each).minutes(HARDWARE[machine], captured=captured) for each in (False, True))
    for one, other in zip(once, twice, strict=True):
        assert one < other <= 4 / 3 * one


# Advice and words


def card(memory: float) -> Hardware:
    return Hardware("some card", fp32=1e13, bf16=1e14, bandwidth=1e12, memory=int(memory))


def test_it_is_advised_where_it_is_enough() -> None:
    less = base_cost().memory
    advice = advice_for_memory(base_cost(recompute=False), card(1.01 * less / USABLE))
    assert advice is not None
    assert advice.endswith(f", or train.recompute to true, which takes about {less / 1e9:.1f} GB.")
    assert "train.recompute" not in (advice_for_memory(base_cost(recompute=False), card(0.99 * less / USABLE)) or "")


def test_it_is_not_advised_twice() -> None:
    advice = advice_for_memory(base_cost("fp32"), card(3.9e9))
    assert advice is not None
    assert "train.recompute" not in advice


def test_it_is_advised_where_not_even_one_row_fits_without_it() -> None:
    config = writer(stack(layers=64))
    once, twice = (
        estimate(config, Work(1, 4096), precision="bf16", recompute=recompute) for recompute in (False, True)
    )
    advice = advice_for_memory(once, card(1.01 * twice.memory / USABLE)) or ""
    assert "not even one row" in advice
    assert "set train.recompute to true, which takes about" in advice
    assert advice.endswith("; or choose a smaller model, shorter rows or a larger machine.")


def test_advised_tokens_are_those_of_a_run_that_recomputes() -> None:
    machine, cost = HARDWARE["t4"], base_cost(tokens=32 * 23040)
    advice = advice_for_memory(cost, machine, captured=True)
    assert advice is not None
    tokens = int(advice.split("train.tokens to ")[1].split()[0].replace(",", ""))
    peaks = [base_cost(tokens=size).peak(machine, captured=True) for size in (tokens, tokens + 32)]
    assert peaks[0] <= USABLE * machine.memory < peaks[1]


def test_a_report_says_so() -> None:
    once, twice = (Report(base_cost(recompute=each), H200, captured=True) for each in (False, True))
    assert (once.plain()["recompute"], twice.plain()["recompute"]) == (False, True)
    assert "layers computed again" in twice.table()
    assert "layers computed again" not in once.table()
