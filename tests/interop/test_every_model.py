"""Every sample model is unchanged by export and import, or its export is refused and nothing is written."""

import json

import pytest
import torch

import regard
from regard.errors import UserError
from regard.interop import export_ctranslate2, export_huggingface, import_huggingface
from regard.model import AnyModelConfig, EncoderDecoderConfig, VisionTransformerConfig
from regard.run import save_model
from tests.model.small_models import ENCODER_SAMPLES, SAMPLES

SAMPLE_CONFIGS = {
    f"{kind}: {name}": config
    for kind, configs in {**SAMPLES, **ENCODER_SAMPLES}.items()
    for name, config in configs.items()
}


def inputs(config: AnyModelConfig) -> list[torch.Tensor]:
    if isinstance(config, VisionTransformerConfig):
        return [torch.randn(2, config.channels, *config.size)]
    sizes = [config.vocab_size]
    if isinstance(config, EncoderDecoderConfig):
        sizes.insert(0, config.source_vocab_size or config.vocab_size)
    return [torch.randint(3, size, (2, 5)) for size in sizes]


def export_error(folder, out) -> str | None:
    """Export a model and return the error message, if any."""
    try:
        export_huggingface(folder, out)
    except UserError as error:
        return str(error)
    return None


@pytest.mark.parametrize("config", SAMPLE_CONFIGS.values(), ids=SAMPLE_CONFIGS.keys())
def test_export_and_import_change_nothing_or_export_is_refused(config, tmp_path):
    torch.manual_seed(0)
    save_model(config.build(), tmp_path / "ours")
    error = export_error(tmp_path / "ours", tmp_path / "theirs")
    if error is not None:
        assert "no counterpart" in error
        assert "\n" not in error
        assert not (tmp_path / "theirs").exists()
        return
    if json.loads((tmp_path / "theirs" / "config.json").read_text())["model_type"] == "pegasus":
        return  # Pegasus cannot be imported
    import_huggingface(tmp_path / "theirs", tmp_path / "back")
    batch = inputs(config)
    first, second = (regard.load(tmp_path / name).logits(*batch) for name in ("ours", "back"))
    torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-5)


def test_some_samples_of_every_kind_can_be_exported(tmp_path):
    """Otherwise the test above would prove little."""
    for kind, configs in {**SAMPLES, **ENCODER_SAMPLES}.items():
        for number, config in enumerate(configs.values()):
            save_model(config.build(), tmp_path / f"{kind} {number}")
        errors = [
            export_error(tmp_path / f"{kind} {index}", tmp_path / f"{kind} {index} out")
            for index in range(len(configs))
        ]
        assert None in errors, kind


@pytest.mark.parametrize("kind", list(ENCODER_SAMPLES))
def test_ctranslate2_export_refuses_encoder_models(kind, tmp_path):
    save_model(next(iter(ENCODER_SAMPLES[kind].values())).build(), tmp_path / "ours")
    with pytest.raises(UserError, match="neither a translator nor a language model"):
        export_ctranslate2(tmp_path / "ours", tmp_path / "theirs")
