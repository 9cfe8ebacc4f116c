"""The architecture that docs/architecture.md adds: one file of under 60 lines that trains and loads like any other."""

import importlib.util
import re
from pathlib import Path

import pytest
import torch

import regard
from regard.model import AUTOREGRESSIVE_MODELS, CAUSAL_MODELS, MODELS
from tests.model.before.samples import build, sample
from tests.model.small_models import EXACT, ids

PAGE = Path(__file__).parents[3] / "docs" / "architecture.md"


@pytest.fixture
def running_mean(tmp_path):
    """The page's file, imported as a user would."""
    (code,) = re.findall(r"<!-- file: running_mean.py -->\n```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert code.count("\n") < 60
    path = tmp_path / "running_mean.py"
    path.write_text(code, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("running_mean", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    for registry in (MODELS, AUTOREGRESSIVE_MODELS, CAUSAL_MODELS):
        registry.pop("running-mean")


def test_steps_equal_the_forward_pass(running_mean):
    model = build(sample("running-mean", width=8))
    tokens = ids(3, 7)
    state = model.start(3, 7)
    found = [model.step(part, state)[0] for part in tokens.split([2, 1, 4], dim=1)]
    torch.testing.assert_close(torch.cat(found, dim=1), model(tokens), **EXACT)


def test_recipe_trains_it_and_the_run_is_loaded(running_mean, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("the cat ate the mouse\nthe dog ate the cat\n" * 200, encoding="utf-8")
    overrides = [
        'model={kind="running-mean", width=64}',
        "tokenizer={kind='word'}",
        "train.steps=150",
        "train.final_weights='last'",
        "train.batch_tokens=256",
        "data.context_length=16",
        "train.schedule={kind='constant', lr=0.03}",
    ]
    result = regard.train("quick-lm", data=text, overrides=overrides, out=tmp_path / "run", device="cpu")
    assert next(iter(result.scores.values())).perplexity < 4
    assert isinstance(regard.load(tmp_path / "run").model, running_mean.RunningMean)
    assert "ate" in regard.load(tmp_path / "run").generate("the cat", max_new_tokens=3, beam_size=3)


def test_kind_that_exists_is_refused(running_mean):
    class OtherConfig(running_mean.RunningMeanConfig):
        """Another config of the same kind."""

    with pytest.raises(regard.UserError, match="There is already a model of kind 'running-mean'"):
        regard.model.register_model(OtherConfig)
