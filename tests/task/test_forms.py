"""Which form of a model is searched, and what is said where a precision cannot be had."""

import pytest
import torch

pytest.importorskip("numba")

from regard import UserError
from regard.attention.position import SinusoidalConfig
from regard.fast.swift import Swift
from regard.model import EncoderDecoder, EncoderDecoderConfig, FeedForwardConfig, StackConfig, TokensConfig
from regard.task import forms as module
from regard.task.forms import COMPILED_FROM, COMPILING_FROM, Forms


def model(**more: object) -> EncoderDecoder:
    kind = StackConfig(layers=1, feed_forward=FeedForwardConfig(hidden=16), dropout=0.0)
    tokens = TokensConfig(padding=0, start=1, end=2)
    values = {"vocabulary": 80, "width": 16, "encoder": kind, "decoder": kind, "tokens": tokens, **more}
    return EncoderDecoderConfig(**values).build().eval()


@pytest.fixture(params=[True, False], ids=["compiled before", "never compiled"])
def compiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(module.swift, "is_compiled", lambda: request.param)
    return bool(request.param)


def test_few_inputs_take_the_model_as_it_is_and_many_its_fast_form(compiled: bool) -> None:
    forms = Forms(model())
    enough = COMPILED_FROM if compiled else COMPILING_FROM
    assert forms.worker(enough - 1) is forms.model
    assert isinstance(forms.worker(enough), Swift)
    assert forms.worker(enough) is forms.worker(10 * enough)


def test_one_may_choose(compiled: bool) -> None:
    forms = Forms(model())
    forms.compile = True
    assert isinstance(forms.worker(1), Swift)
    forms.compile = False
    assert forms.worker(10**6) is forms.model


def test_a_model_without_a_fast_form_is_searched_as_it_is(compiled: bool) -> None:
    forms = Forms(model(position=SinusoidalConfig(join="concatenate", features=8), tie=False))
    forms.compile = True
    assert not forms.pays_to_compile(10**6)
    assert forms.worker(10**6) is forms.model


def test_bytes_are_always_the_fast_form(compiled: bool) -> None:
    forms = Forms(model())
    forms.precision = "int8"
    assert forms.worker(1).precision == "int8"
    forms.precision = "float32"
    assert forms.worker(10**6).precision == "float32"


def test_what_cannot_be_had_is_refused_with_the_reason() -> None:
    forms = Forms(model())
    forms.precision = "bf16"
    with pytest.raises(UserError, match="bf16 is for GPUs"):
        forms.worker(1)
    forms.precision, forms.compile = "int8", False
    with pytest.raises(UserError, match="needs compiled kernels"):
        forms.worker(1)
    odd = Forms(model(position=SinusoidalConfig(join="concatenate", features=8), tie=False))
    odd.precision = "int8"
    with pytest.raises(UserError, match=r"int8 cannot be had: .*positions"):
        odd.worker(1)


def test_changed_weights_make_new_forms() -> None:
    forms = Forms(model())
    forms.compile = True
    before = forms.worker(1)
    with torch.no_grad():
        forms.model.vocabulary.weight.mul_(2)
    forms.forget()
    assert forms.worker(1) is not before
