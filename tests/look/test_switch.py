"""A head that is off hands over zeros, or its mean: the same as changing the output projection by hand."""

import copy
from itertools import product

import pytest
import torch

from regard import UserError
from regard.attention.heads import Attention
from regard.look.attentions import Gathered, attention_at, attentions_of
from regard.look.switch import every_head, mean_outputs, switched_off
from regard.look.wire import RunRequest, SomeDecodingSettings, Switched
from regard.look.writer import WriterSubject
from tests.look.support import LAYOUTS, TEXT, every_task, laid_out_writer, request, writer
from tests.model.small_models import READERS, SAMPLES, build, inputs

CONFIGS = {
    f"{kind}: {name}": config
    for kind, samples in (SAMPLES | READERS).items()
    for name, config in samples.items()
    if name != "heads not mixed" and not (kind == "encoder" and name == "no positions")
}


def off(side, layer: int, head: int, how="zero") -> Switched:
    return Switched(side=side, layer=layer, head=head, how=how)


def without(attention: Attention, head: int, instead: torch.Tensor | None = None) -> None:
    """The output projection without a head's columns, and with what these make of a constant in its bias."""
    width = attention.sizes.value_width
    columns = slice(head * width, (head + 1) * width)
    output = attention.output
    assert isinstance(output, torch.nn.Linear)
    with torch.no_grad():
        if instead is not None:
            added = output.weight[:, columns] @ instead[columns]
            bias = added if output.bias is None else output.bias + added
            output.bias = torch.nn.Parameter(bias)
        output.weight[:, columns] = 0


@pytest.mark.parametrize("name", CONFIGS)
def test_off_is_the_same_as_zeros_in_the_output_projection(name: str) -> None:
    model = build(CONFIGS[name])
    given = inputs(CONFIGS[name])
    if CONFIGS[name].kind == "vision":
        given = tuple(one.double() for one in given)
    for side, layers in attentions_of(model).items():
        head = layers[-1].heads - 1
        twin = copy.deepcopy(model)
        without(attention_at(twin, side, len(layers) - 1), head)
        with torch.no_grad(), switched_off(model, [off(side, len(layers) - 1, head)]):
            ours = model(*given)
        with torch.no_grad():
            torch.testing.assert_close(ours, twin(*given), rtol=0, atol=1e-12)
            assert not torch.equal(ours, model(*given))


@pytest.mark.parametrize("kind", ["translation", "language"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_search_with_a_head_off_is_that_of_a_model_without_it(layout: str, kind: str) -> None:
    """Step by step, behind a cache, with all beams: the same tokens and the same totals."""
    subject = laid_out_writer(layout, kind)
    side = "cross" if kind == "translation" else "decoder"
    settings = SomeDecodingSettings(method="beam", beams=3, longest=6)
    ours = subject.trace(RunRequest(text=TEXT, decoding=settings, off=[off(side, 1, 0)]))
    without(attention_at(subject.model, side, 1), 0)
    theirs = subject.trace(RunRequest(text=TEXT, decoding=settings))
    assert ours.output == theirs.output
    assert [node.total for node in ours.header.nodes] == pytest.approx([node.total for node in theirs.header.nodes])
    assert [node.token.id for node in ours.header.nodes] == [node.token.id for node in theirs.header.nodes]


def test_a_mean_is_the_same_as_a_constant_in_the_output_projection() -> None:
    subject = writer()
    wanted = RunRequest(text=TEXT, off=[off("encoder", 0, 1, "mean"), off("decoder", 1, 3, "mean")])
    whole = subject.whole_pass(wanted)
    with mean_outputs(subject.model) as means:
        whole()
    ours = subject.trace(wanted)
    for side, layer, head in (("encoder", 0, 1), ("decoder", 1, 3)):
        without(attention_at(subject.model, side, layer), head, means[side, layer])
    theirs = subject.trace(RunRequest(text=TEXT))
    assert ours.header.total == pytest.approx(theirs.header.total)
    assert ours.output == theirs.output


def test_means_are_those_of_what_heads_hand_over() -> None:
    subject = writer()
    kept: list[torch.Tensor] = []
    attention = attention_at(subject.model, "cross", 1)
    hook = attention.output.register_forward_pre_hook(lambda module, given: kept.append(given[0][0]))
    with torch.no_grad(), mean_outputs(subject.model) as means:
        subject._pass(subject.source(RunRequest(text=TEXT)), [1, 5, 9], None)
        subject._pass(subject.source(RunRequest(text="a cat")), [1, 7], None)
    hook.remove()
    torch.testing.assert_close(means["cross", 1], torch.cat(kept).mean(dim=0))


def test_means_are_taken_over_the_text_and_the_answer_of_the_whole_model() -> None:
    subject = writer()
    trace = subject.trace(RunRequest(text=TEXT))
    whole = subject.whole_pass(RunRequest(text=TEXT))
    with mean_outputs(subject.model) as means:
        whole()
    kept: list[torch.Tensor] = []
    attention = attention_at(subject.model, "decoder", 0)
    hook = attention.output.register_forward_pre_hook(lambda module, given: kept.append(given[0][0]))
    subject.forced(trace, Gathered(subject.model))
    hook.remove()
    torch.testing.assert_close(means["decoder", 0], kept[0].mean(dim=0))


@pytest.mark.parametrize("task", list(every_task()))
@pytest.mark.parametrize("how", ["zero", "mean"])
def test_heads_can_be_off_in_a_trace_of_every_task(task: str, how: str) -> None:
    subject = every_task()[task]
    side = subject.summary().attention[-1].side
    plain = subject.trace(request(subject))
    changed = subject.trace(request(subject, off=[off(side, 0, head, how).plain() for head in range(4)]))
    assert changed.header.request.off is not None
    last = {one: array.float() for one, array in changed.arrays.items() if one.startswith("attention/")}
    before = {one: array.float() for one, array in plain.arrays.items() if one.startswith("attention/")}
    assert any(last[one].shape != before[one].shape or not torch.equal(last[one], before[one]) for one in last)
    assert subject.trace(request(subject)).header.model_copy(update={"seconds": 0.0}) == plain.header.model_copy(
        update={"seconds": 0.0}
    )


def test_nodes_and_cells_of_a_trace_are_of_the_model_as_it_was() -> None:
    """With the same heads off, and with none off that were not."""
    subject = writer()
    trace = subject.trace(RunRequest(text=TEXT, off=[off("decoder", 0, 0), off("cross", 1, 2)]))
    whole = subject.trace(RunRequest(text=TEXT))
    kept = next(node for node in trace.header.nodes if node.attention >= 0 and node.step == 3)
    own = torch.tensor(trace.node(kept.id).cross)
    torch.testing.assert_close(own, trace.array("beam/cross")[kept.attention].float(), rtol=0, atol=1e-3)
    weights = torch.tensor(trace.cell("cross", 1, 0, 2).weights)
    torch.testing.assert_close(weights, trace.attention("cross", 1, 0)[2], rtol=0, atol=1e-3)
    assert not torch.allclose(weights, whole.attention("cross", 1, 0)[2], atol=1e-3)


def test_all_is_as_before_when_the_block_ends() -> None:
    subject = writer()
    before = {name: len(module._forward_pre_hooks) for name, module in subject.model.named_modules()}
    with pytest.raises(RuntimeError), switched_off(subject.model, [off("encoder", 0, 0)]):
        raise RuntimeError
    assert {name: len(module._forward_pre_hooks) for name, module in subject.model.named_modules()} == before


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (off("encoder", 2, 0), "no layer 2 in 'encoder'; its 2 layers"),
        (off("cross", 0, 4), "no head 4 in 'cross'; its 4 heads"),
    ],
)
def test_a_head_that_is_not_there_cannot_be_off(wrong: Switched, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence), switched_off(writer().model, [wrong]):
        pass


def test_a_side_that_is_not_there_is_named() -> None:
    subject = every_task()["labelling"]
    with pytest.raises(UserError, match="no attention called 'cross'; it has encoder"):
        subject.trace(request(subject, off=[off("cross", 0, 0).plain()]))


def test_every_head_is_listed_in_the_order_of_computing() -> None:
    model = writer().model
    heads = list(product(("encoder", "decoder", "cross"), range(2), range(4)))
    assert [(side, layer, head) for (side, layer), head in every_head(model)] == heads


def test_the_fast_forms_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have weights of their own, in which no head would be off."""

    def never(*args, **kwargs):
        raise AssertionError("a fast form was asked for")

    monkeypatch.setattr("regard.task.forms.Forms.worker", never)
    for subject in every_task().values():
        if isinstance(subject, WriterSubject):
            subject.trace(request(subject, off=[off("decoder", 0, 0).plain()]))
