"""Every model there is goes out and comes back as it was, or is refused in one sentence with nothing written."""

import json

import pytest
import torch

import regard
from regard.errors import UserError
from regard.interop import export_ctranslate2, export_huggingface, import_huggingface
from regard.model import AnyModelConfig, EncoderDecoderConfig, VisionTransformerConfig
from regard.run import save
from tests.model.small_models import READERS, SAMPLES

ALL = {
    f"{kind}: {name}": config for kind, configs in {**SAMPLES, **READERS}.items() for name, config in configs.items()
}


def inputs(config: AnyModelConfig) -> list[torch.Tensor]:
    if isinstance(config, VisionTransformerConfig):
        return [torch.randn(2, config.channels, *config.size)]
    sizes = [config.vocabulary]
    if isinstance(config, EncoderDecoderConfig):
        sizes.insert(0, config.source_vocabulary or config.vocabulary)
    return [torch.randint(3, size, (2, 5)) for size in sizes]


def refusal(folder, out) -> str | None:
    """Why a model cannot go out, if it cannot."""
    try:
        export_huggingface(folder, out)
    except UserError as error:
        return str(error)
    return None


@pytest.mark.parametrize("config", ALL.values(), ids=ALL.keys())
def test_a_model_comes_back_as_it_was_or_is_refused(config, tmp_path):
    torch.manual_seed(0)
    save(config.build(), tmp_path / "ours")
    refused = refusal(tmp_path / "ours", tmp_path / "theirs")
    if refused is not None:
        assert "no counterpart" in refused
        assert "\n" not in refused
        assert not (tmp_path / "theirs").exists()
        return
    if json.loads((tmp_path / "theirs" / "config.json").read_text())["model_type"] == "pegasus":
        return  # which only goes out
    import_huggingface(tmp_path / "theirs", tmp_path / "back")
    given = inputs(config)
    first, second = (regard.load(tmp_path / name).logits(*given) for name in ("ours", "back"))
    torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-5)


def test_some_of_every_kind_go_out(tmp_path):
    """Else the test above would prove little."""
    for kind, configs in {**SAMPLES, **READERS}.items():
        for number, config in enumerate(configs.values()):
            save(config.build(), tmp_path / f"{kind} {number}")
        outcomes = [refusal(tmp_path / f"{kind} {at}", tmp_path / f"{kind} {at} out") for at in range(len(configs))]
        assert None in outcomes, kind


@pytest.mark.parametrize("kind", list(READERS))
def test_ctranslate2_refuses_models_that_read(kind, tmp_path):
    save(next(iter(READERS[kind].values())).build(), tmp_path / "ours")
    with pytest.raises(UserError, match="neither translates nor continues texts"):
        export_ctranslate2(tmp_path / "ours", tmp_path / "theirs")
