"""The costs of a Transformer's parts add up to those of the whole forward pass."""

import pytest

from regard.cost import BatchShape
from regard.cost.forward import forward_cost
from regard.cost.op_cost import Device, OpCost
from regard.cost.parts import part_costs
from regard.model import AnyModelConfig, EncoderDecoderConfig, VisionTransformerConfig, build_meta
from regard.model.feed_forward import NoFeedForwardConfig
from tests.model.small_models import ENCODER_SAMPLES, SAMPLES, encoder_decoder, language_model, stack

NO_FEED_FORWARD = stack().model_copy(update={"feed_forward": NoFeedForwardConfig()})
CONFIGS: dict[str, AnyModelConfig] = {
    **{f"{kind}: {name}": one for kind, some in (SAMPLES | ENCODER_SAMPLES).items() for name, one in some.items()},
    "no feed-forward": language_model(decoder=NO_FEED_FORWARD),
    "post-norm, shared keys and values": encoder_decoder(
        encoder=stack(norm_position="post"), decoder=stack(norm_position="post"), cross_kv="shared"
    ),
}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", CONFIGS)
def test_parts_add_up_to_the_forward_pass(name: str, device: Device) -> None:
    config = CONFIGS[name]
    length = config.sequence_length if isinstance(config, VisionTransformerConfig) else 7
    batch = BatchShape(3, length, 5 if isinstance(config, EncoderDecoderConfig) else 0)
    parts = part_costs(config, batch, device)  # type: ignore[arg-type]
    source, target = forward_cost(config, batch, device)
    assert sum(parts.values(), OpCost()) == source + target
    assert min(part.bytes("float32", device) for part in parts.values()) >= 0
    modules = dict(build_meta(config).named_modules())
    assert set(parts) - set(modules) <= {"lm_head", "head"}  # a head may be the embedding table, or be missing
