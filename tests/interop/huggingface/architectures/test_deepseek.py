"""Imported DeepSeek-V2 and -V3 models have the logits of transformers, and are unchanged by export and import.

Transformers computes norms, routers and (in V2) rotary features in float32 in models of any dtype. For comparisons in
float64, `torch.float32` is replaced by float64 in its code.
"""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    DeepseekV2Config,
    DeepseekV2ForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
)
from typer.testing import CliRunner

import regard
from regard.attention import LatentAttentionConfig, YarnScaling
from regard.cli import app
from regard.errors import UserError
from regard.interop import export_ctranslate2, export_huggingface, import_huggingface
from regard.interop.huggingface.architectures.deepseek import DEEPSEEK_V2, DEEPSEEK_V3
from regard.interop.huggingface.hf_config import HFConfig
from regard.interop.huggingface.weights import Weights
from regard.model import FeedForwardConfig, MixtureOfExpertsConfig, count_parameters, read_config
from regard.run import save_model
from tests.interop.huggingface.support import ids, randomize

pytestmark = pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")  # of models without experts

CLOSE = 1e-5
SMALL = {
    "vocab_size": 41,
    "hidden_size": 24,
    "intermediate_size": 32,
    "moe_intermediate_size": 8,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "kv_lora_rank": 8,
    "q_lora_rank": 12,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4,
    "v_head_dim": 5,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.5,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
YARN = {
    "rope_type": "yarn",
    "factor": 8.0,
    "original_max_position_embeddings": 8,
    "mscale": 1.0,
    "mscale_all_dim": 0.7,
    "beta_fast": 4.0,
    "rope_theta": 100.0,
}
DENSE = {"first_k_dense_replace": 3}
GROUPED = {"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2}
V2 = {
    "V2, one dense layer": {},
    "V2, dense only, biases": DENSE | {"attention_bias": True, "mlp_bias": True},
    "V2, experts only, no query latent, tied": {
        "first_k_dense_replace": 0,
        "q_lora_rank": None,
        "n_shared_experts": 2,
        "tie_word_embeddings": True,
    },
    "V2, groups, yarn": GROUPED | {"routed_scaling_factor": 4.0, "rope_parameters": YARN, "hidden_act": "gelu"},
    "V2, no shared experts, top 1, large eps": {
        "n_shared_experts": 0,
        "num_experts_per_tok": 1,
        "first_k_dense_replace": 2,
        "rms_norm_eps": 0.1,
    },
}
V3 = {
    "V3, one dense layer": {},
    "V3, dense only, no query latent": DENSE | {"q_lora_rank": None},
    "V3, experts only, one group, tied": {
        "first_k_dense_replace": 0,
        "n_group": 1,
        "topk_group": 1,
        "tie_word_embeddings": True,
        "norm_topk_prob": False,
    },
    "V3, yarn, biases, no shared experts": {"rope_parameters": YARN, "attention_bias": True, "n_shared_experts": 0},
    "V3, rotary halves, odd heads": {
        "rope_interleave": False,
        "num_attention_heads": 5,
        "num_key_value_heads": 5,
        "n_shared_experts": 3,
        "n_group": 4,
        "topk_group": 3,
        "first_k_dense_replace": 2,
    },
    "V3, linear RoPE scaling": {"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 500.0}},
}
VARIANTS = V2 | V3
every_variant = pytest.mark.parametrize("name", VARIANTS)


def build(name, **changes):
    hf_config = SMALL | VARIANTS[name] | changes
    # Their grouped matmul needs rows aligned to 16 bytes.
    hf_config["experts_implementation"] = "eager"
    if name.startswith("V2"):
        return DeepseekV2ForCausalLM(DeepseekV2Config(**hf_config))
    return DeepseekV3ForCausalLM(DeepseekV3Config(**{"n_group": 2, "topk_group": 1} | hf_config))


def load_hf(directory):
    """Load a model with transformers, without missing or unexpected tensors."""
    model, info = AutoModelForCausalLM.from_pretrained(
        directory, output_loading_info=True, experts_implementation="eager"
    )
    assert not [*info["missing_keys"], *info["unexpected_keys"], *info["mismatched_keys"]]
    return model.eval()


@torch.no_grad()
def hf_logits(model):
    return model(ids(2, 11, 41)).logits


@every_variant
def test_logits_and_cached_decoding_equal_transformers(name, from_hf, equal_tensors, check_padded_language_model):
    theirs = build(name)
    ours = from_hf(theirs)
    equal_tensors(ours.logits(ids(2, 11, 41)), hf_logits(theirs), bound=CLOSE)
    check_padded_language_model(theirs, ours)
    with torch.no_grad():
        for sizes in ([1] * 9, [4, 1, 3, 1]):
            tokens, past, cache = ids(2, 9, 41), None, ours.model.start(2, 9)
            for chunk in tokens.split(sizes, dim=1):
                actual, cache = ours.model.step(chunk, cache)
                expected = theirs(chunk, past_key_values=past, use_cache=True)
                past = expected.past_key_values
                equal_tensors(actual, expected.logits, bound=CLOSE)


class Float64Torch:
    """The torch module with float64 in place of float32, and with `polar` computed by cosine and sine."""

    float32 = torch.float64

    def polar(self, _, angles):
        return torch.complex(angles.cos(), angles.sin())

    def __getattr__(self, name):
        return getattr(torch, name)


def rotate_complex128(query, key, angles):
    """V2's rotation, in complex128 instead of complex64."""
    rotations = angles.to(torch.complex128)[:, None]
    pairs = (torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2)) for x in (query, key))
    return [torch.view_as_real(pair * rotations).flatten(3) for pair in pairs]


@every_variant
@torch.no_grad()
def test_logits_in_float64_equal_transformers(name, from_hf, monkeypatch):
    theirs = build(name)
    ours = from_hf(theirs).model.double()
    code = f"transformers.models.deepseek_{name[:2].lower()}.modeling_deepseek_{name[:2].lower()}"
    monkeypatch.setattr(f"{code}.torch", Float64Torch())
    monkeypatch.setattr(f"{code}.apply_rotary_emb", rotate_complex128, raising=False)
    for attention in ours.decoder.self_attention():  # theirs are computed in float32
        attention.rotary.frequencies.values = theirs.model.rotary_emb.inv_freq.clone()
    tokens = ids(3, 12, 41)
    expected = theirs.double()(tokens).logits
    assert expected.dtype == torch.float64
    torch.testing.assert_close(ours(tokens), expected, rtol=0, atol=1e-11)


@every_variant
def test_round_trip_preserves_every_tensor_and_the_logits(name, save_hf, equal_tensors, tmp_path):
    theirs = build(name)
    directory = save_hf(theirs)
    import_huggingface(directory, tmp_path / "ours")
    export_huggingface(tmp_path / "ours", tmp_path / "back")
    import_huggingface(tmp_path / "back", tmp_path / "again")
    first, second = (regard.load(tmp_path / folder) for folder in ("ours", "again"))
    assert first.config == second.config
    for (tensor_name, one), other in zip(
        first.model.state_dict().items(), second.model.state_dict().values(), strict=True
    ):
        assert torch.equal(one, other), tensor_name
    back = load_hf(tmp_path / "back")
    assert type(back) is type(theirs)
    equal_tensors(hf_logits(back), hf_logits(theirs), bound=CLOSE)
    before, after = (load_file(folder / "model.safetensors") for folder in (directory, tmp_path / "back"))
    assert before.keys() == after.keys()
    if "halves" not in name:  # halves are exported as interleaved pairs
        assert all(torch.equal(after[tensor_name], tensor) for tensor_name, tensor in before.items())


def test_config_is_imported(from_hf):
    config = from_hf(build("V3, rotary halves, odd heads", rope_parameters=YARN, rms_norm_eps=1e-5)).config
    stack, attention, experts = config.decoder, config.decoder.attention, config.decoder.feed_forward
    assert (
        stack.dense_prefix.layers,
        stack.dense_prefix.feed_forward.hidden,
        stack.dense_prefix.feed_forward.kind,
    ) == (2, 32, "dense")
    assert isinstance(attention, LatentAttentionConfig)
    assert (attention.kv_latent, attention.query_latent, attention.eps, stack.norm.eps) == (8, 12, 1e-6, 1e-5)
    assert attention.scale == pytest.approx(10**-0.5 * (0.07 * torch.tensor(8.0).log().item() + 1) ** 2)
    assert isinstance(config.position.scaling, YarnScaling)
    assert isinstance(experts, MixtureOfExpertsConfig)
    assert (experts.router, experts.group_score, experts.balancing, experts.normalize) == (
        "sigmoid",
        "top2_sum",
        "bias",
        True,
    )
    assert (experts.experts, experts.top_k, experts.shared_experts, experts.groups, experts.top_groups) == (
        8,
        3,
        3,
        4,
        3,
    )


def test_expert_bias_affects_the_logits(from_hf, equal_tensors):
    """Otherwise the tests above would not notice an ignored bias."""
    ours = from_hf(build("V3, one dense layer"))
    tokens = ids(2, 11, 41)
    before = ours.logits(tokens)
    for name, buffer in ours.model.named_buffers():
        if name.endswith("expert_bias"):
            buffer.zero_()
    assert (ours.logits(tokens) - before).abs().max() > 0.01


# File variants


def test_stacked_expert_weights_are_split(tmp_path, equal_tensors):
    theirs = randomize(build("V2, one dense layer"))
    theirs.save_pretrained(tmp_path / "theirs", save_original_format=False)
    assert "model.layers.1.mlp.experts.gate_up_proj" in load_file(tmp_path / "theirs" / "model.safetensors")
    import_huggingface(tmp_path / "theirs", tmp_path / "ours")
    equal_tensors(regard.load(tmp_path / "ours").logits(ids(2, 11, 41)), hf_logits(theirs), bound=CLOSE)


def test_multi_token_prediction_layers_are_ignored(save_hf, tmp_path, equal_tensors):
    theirs = build("V3, one dense layer")
    directory = save_hf(theirs, num_nextn_predict_layers=1, auto_map={"AutoConfig": "configuration_deepseek.A"})
    tensors = load_file(directory / "model.safetensors")
    more = {name.replace("layers.2", "layers.3"): one.clone() for name, one in tensors.items() if "layers.2" in name}
    save_file(tensors | more | {"model.layers.3.eh_proj.weight": torch.ones(2, 4)}, directory / "model.safetensors")
    import_huggingface(directory, tmp_path / "ours")
    equal_tensors(regard.load(tmp_path / "ours").logits(ids(2, 11, 41)), hf_logits(theirs), bound=CLOSE)
    export_huggingface(tmp_path / "ours", tmp_path / "back")
    hf_config = json.loads((tmp_path / "back" / "config.json").read_text())
    assert hf_config["num_nextn_predict_layers"] == 0
    assert "auto_map" not in hf_config
    load_hf(tmp_path / "back")


def test_null_experts_mean_none(save_hf, tmp_path, equal_tensors):
    """As in DeepSeek's own code; transformers can only load our export."""
    theirs = build("V2, dense only, biases")
    directory = save_hf(theirs, n_routed_experts=None, first_k_dense_replace=1)
    import_huggingface(directory, tmp_path / "ours")
    assert isinstance(regard.load(tmp_path / "ours").config.decoder.feed_forward, FeedForwardConfig)
    export_huggingface(tmp_path / "ours", tmp_path / "back")
    equal_tensors(hf_logits(load_hf(tmp_path / "back")), hf_logits(theirs), bound=CLOSE)
    directory = save_hf(build("V2, no shared experts, top 1, large eps"), n_shared_experts=None)
    import_huggingface(directory, tmp_path / "others")
    export_huggingface(tmp_path / "others", tmp_path / "others back")
    assert load_hf(tmp_path / "others back").config.n_shared_experts == 0


def test_round_trip_preserves_half_precision_and_the_float32_expert_bias(save_hf, tmp_path):
    directory = save_hf(build("V3, one dense layer").to(torch.bfloat16))
    path = directory / "model.safetensors"
    save_file({name: one.float() if "expert_bias" in name else one for name, one in load_file(path).items()}, path)
    import_huggingface(directory, tmp_path / "ours")
    export_huggingface(tmp_path / "ours", tmp_path / "back")
    before, after = load_file(path), load_file(tmp_path / "back" / "model.safetensors")
    assert {name: one.dtype for name, one in after.items()} == {name: one.dtype for name, one in before.items()}
    assert load_hf(tmp_path / "back").dtype == torch.bfloat16


def test_missing_keys_have_the_defaults_of_transformers():
    """Compares configs only, because these models are large."""
    sizes = {"hidden_size": 64, "intermediate_size": 8, "num_hidden_layers": 5, "num_attention_heads": 4}
    for architecture, kind in ((DEEPSEEK_V2, DeepseekV2Config), (DEEPSEEK_V3, DeepseekV3Config)):
        hf_values = sizes | {"vocab_size": 9, "num_experts_per_tok": 3}
        theirs = kind(**hf_values).to_dict() | {"num_key_value_heads": 4}
        config = architecture.read(HFConfig(hf_values, "config.json"), Weights([], "model."))
        assert config == architecture.read(HFConfig(theirs, "config.json"), Weights([], "model."))


PUBLISHED = {
    "V2-Lite": (
        DEEPSEEK_V2,
        15.7e9,
        {
            "vocab_size": 102400,
            "hidden_size": 2048,
            "intermediate_size": 10944,
            "moe_intermediate_size": 1408,
            "num_hidden_layers": 27,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "q_lora_rank": None,
            "n_routed_experts": 64,
            "n_shared_experts": 2,
            "num_experts_per_tok": 6,
            "first_k_dense_replace": 1,
            "n_group": 1,
            "topk_group": 1,
            "topk_method": "greedy",
            "scoring_func": "softmax",
            "norm_topk_prob": False,
            "routed_scaling_factor": 1.0,
            "aux_loss_alpha": 0.001,
            "rope_scaling": YARN | {"type": "yarn", "factor": 40, "mscale": 0.707, "mscale_all_dim": 0.707},
        },
    ),
    "V3": (
        DEEPSEEK_V3,
        671e9,
        {
            "vocab_size": 129280,
            "hidden_size": 7168,
            "intermediate_size": 18432,
            "num_hidden_layers": 61,
            "num_attention_heads": 128,
            "scoring_func": "sigmoid",
            "topk_method": "noaux_tc",
            "num_nextn_predict_layers": 1,
            "rope_scaling": YARN | {"type": "yarn", "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0},
        },
    ),
}


@pytest.mark.parametrize(("architecture", "parameters", "hf_values"), PUBLISHED.values(), ids=PUBLISHED.keys())
def test_published_models_have_the_published_number_of_parameters(architecture, parameters, hf_values):
    """DeepSeek-AI 2024, "DeepSeek-V2", appendix B, and "DeepSeek-V3", §4.2: 15.7 B and 671 B."""
    config = architecture.read(HFConfig(hf_values, "config.json"), Weights([], "model."))
    with torch.device("meta"):
        assert count_parameters(config.build()) == pytest.approx(parameters, rel=0.005)


# Command line


def test_import_and_export_commands(save_hf, tmp_path, equal_tensors):
    theirs = build("V2, groups, yarn")
    run = CliRunner()
    result = run.invoke(app, ["import", str(save_hf(theirs)), str(tmp_path / "ours")])
    assert result.exit_code == 0
    assert "imported DeepSeek-V2 with" in result.output
    result = run.invoke(app, ["export", str(tmp_path / "ours"), "hf", str(tmp_path / "back")])
    assert result.exit_code == 0
    assert "exported as DeepseekV2ForCausalLM with" in result.output
    equal_tensors(hf_logits(load_hf(tmp_path / "back")), hf_logits(theirs), bound=CLOSE)


# Unsupported configs

INVALID = {
    "experts in every other layer": ("V2", {"moe_layer_freq": 2}, "moe_layer_freq is 2, which regard cannot import"),
    "fewer KV heads": ("V3", {"num_key_value_heads": 2}, "num_key_value_heads is 2, .* only 4 is supported"),
    "normalized gates": ("V2", {"norm_topk_prob": True}, "norm_topk_prob is true, which regard cannot import"),
    "sigmoid router in V2": (
        "V2",
        {"scoring_func": "sigmoid"},
        "scoring_func is 'sigmoid'.* only softmax is supported",
    ),
    "softmax router in V3": (
        "V3",
        {"scoring_func": "softmax"},
        "scoring_func is 'softmax'.* only sigmoid is supported",
    ),
    "unknown top-k method": ("V2", {"topk_method": "noaux_tc"}, "topk_method is 'noaux_tc', but should be one of"),
    "top-k method of V2 in V3": (
        "V3",
        {"topk_method": "greedy"},
        "topk_method is 'greedy'.* only noaux_tc is supported",
    ),
    "biases of shared experts": ("V2", {"mlp_bias": True}, "mlp_bias is true, which regard cannot import"),
    "no top k": ("V2", {"num_experts_per_tok": None}, "num_experts_per_tok is missing"),
    "top k above the number of experts": (
        "V2",
        {"num_experts_per_tok": 9},
        "num_experts_per_tok: found 9; expected no more",
    ),
    "groups that do not divide": ("V3", {"n_group": 3}, "n_group: found 3; expected a number that divides"),
    "more top groups than groups": ("V3", {"topk_group": 3}, "topk_group: found 3; expected no more than"),
    "groups of one": ("V3", {"n_group": 8, "topk_group": 4}, "n_group: found 'top2_sum'; groups have a single expert"),
    "one expert, normalized": ("V3", {"num_experts_per_tok": 1}, "norm_topk_prob: with top_k = 1"),
    "gates scaled by zero": (
        "V3",
        {"routed_scaling_factor": 0.0},
        "routed_scaling_factor: found 0.0; expected greater",
    ),
    "odd rotary width": ("V3", {"qk_rope_head_dim": 3}, "qk_rope_head_dim: found 3; RoPE rotates pairs"),
    "a negative number of dense layers": ("V2", {"first_k_dense_replace": -1}, "first_k_dense_replace is -1"),
    "unknown activation": ("V3", {"hidden_act": "relu"}, "hidden_act is 'relu', but should be one of silu"),
    "unknown RoPE scaling": ("V3", {"rope_scaling": {"type": "deep"}}, "rope_scaling: type is 'deep'"),
    "quantized": ("V3", {"quantization_config": {"quant_method": "fp8"}}, "quantization_config says"),
    "more experts than are stored": ("V2", {"n_routed_experts": 9}, r"gate\.weight|experts\.8\."),
    "fewer experts than are stored": ("V2", {"n_routed_experts": 4}, r"shape|no place"),
    "more dense layers than are stored": (
        "V2",
        {"first_k_dense_replace": 2},
        r"lacks the tensor model\.layers\.1\.mlp\.gate_proj\.weight",
    ),
    "latent of another size": ("V3", {"kv_lora_rank": 9}, r"kv_a_layernorm\.weight has the shape \(8,\).*\(9,\)"),
}


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """One saved model per version."""
    folders = {}
    for version in ("V2", "V3"):
        folders[version] = tmp_path_factory.mktemp("stored") / version
        randomize(build(f"{version}, one dense layer")).save_pretrained(folders[version])
    return folders


@pytest.mark.parametrize(("version", "changes", "message"), INVALID.values(), ids=INVALID.keys())
def test_unsupported_config_is_refused_and_nothing_is_written(version, changes, message, stored, tmp_path):
    (tmp_path / "theirs").mkdir()
    for path in stored[version].iterdir():
        (tmp_path / "theirs" / path.name).symlink_to(path)
    hf_config = json.loads((stored[version] / "config.json").read_text())
    (tmp_path / "theirs" / "config.json").unlink()
    (tmp_path / "theirs" / "config.json").write_text(json.dumps(hf_config | changes))
    with pytest.raises(UserError, match=message) as caught:
        import_huggingface(tmp_path / "theirs", tmp_path / "ours")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "ours").exists()


# Models with our own configs

LATENT = {"kind": "latent", "heads": 4, "kv_latent": 6, "head_dim": 2, "rope_head_dim": 4, "value_head_dim": 5}
PLAIN = {"hidden": 20, "activation": "swiglu", "bias": False}
EXPERTS = PLAIN | {"kind": "moe", "hidden": 8, "experts": 6, "top_k": 2}
SOFTMAX = EXPERTS | {"normalize": False}
SIGMOID = EXPERTS | {"router": "sigmoid"}


def language_model(feed_forward, *, attention=None, **changes):
    decoder = {
        "layers": 3,
        "norm": {"kind": "rms", "eps": 1e-6},
        "attention": LATENT | (attention or {}),
        "feed_forward": feed_forward,
    }
    return {
        "kind": "language-model",
        "vocab_size": 41,
        "width": 16,
        "position": {"kind": "rotary"},
        "embedding": {"scale": False},
        "decoder": decoder | changes.pop("decoder", {}),
        **changes,
    }


DENSE_PREFIX = {"dense_prefix": {"layers": 2, "feed_forward": PLAIN}}
YARN_POSITION = {"kind": "rotary", "theta": 50.0, "scaling": {"kind": "yarn", "factor": 4.0, "original_max_length": 8}}
OURS = {
    "dense": ("V3", language_model(PLAIN, tie_weights=False)),
    "dense, biases": ("V2", language_model(PLAIN | {"bias": True}, attention={"bias": True, "query_latent": 3})),
    "softmax": ("V2", language_model(SOFTMAX | {"shared_experts": 2, "routed_scale": 3.0})),
    "softmax, groups, dense prefix": (
        "V2",
        language_model(
            SOFTMAX | {"groups": 3, "top_groups": 2, "aux_loss": 0.5}, decoder=DENSE_PREFIX, position=YARN_POSITION
        ),
    ),
    "sigmoid, auxiliary loss": ("V3", language_model(SIGMOID | {"normalize": False}, attention={"heads": 3})),
    "sigmoid, groups, dense prefix": (
        "V3",
        language_model(
            SIGMOID
            | {
                "groups": 2,
                "top_groups": 1,
                "group_score": "top2_sum",
                "balancing": "bias",
                "bias_update_rate": 0.1,
                "shared_experts": 1,
            },
            decoder=DENSE_PREFIX,
            tie_weights=False,
        ),
    ),
}


def save_ours(plain, folder):
    torch.manual_seed(0)
    model = read_config(plain).build()
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            tensor.copy_(torch.randn(tensor.shape) * 0.25 + name.endswith("norm.weight"))
    save_model(model, folder)
    return regard.load(folder)


@pytest.mark.parametrize(("version", "plain"), OURS.values(), ids=OURS.keys())
def test_exported_model_has_the_same_logits(version, plain, tmp_path, equal_tensors):
    ours = save_ours(plain, tmp_path / "ours")
    export_huggingface(tmp_path / "ours", tmp_path / "theirs")
    theirs = load_hf(tmp_path / "theirs")
    assert type(theirs).__name__ == f"Deepseek{version}ForCausalLM"
    equal_tensors(ours.logits(ids(2, 11, 41)), hf_logits(theirs), bound=CLOSE)


NOT_EXPORTABLE = {
    "normalized gates": (language_model(EXPERTS), r"decoder\.feed_forward\.normalize is True.*DeepSeek-V2.*False"),
    "groups scored by max": (
        language_model(SIGMOID | {"groups": 3, "top_groups": 1}),
        r"decoder\.feed_forward\.group_score is 'max'.*DeepSeek-V3.*'top2_sum'",
    ),
    "biases of experts": (
        language_model(SOFTMAX | {"bias": True}),
        r"decoder\.feed_forward\.bias is True.*DeepSeek-V2",
    ),
    "a scale": (language_model(PLAIN, attention={"scale": 0.5}), r"decoder\.attention\.scale is 0\.5.*DeepSeek-V3"),
    "a window": (
        language_model(PLAIN, attention={"pattern": "sliding(3)"}),
        r"decoder\.attention\.pattern is 'sliding\(3\)'.*DeepSeek-V3.*'full'",
    ),
    "small eps of latent norms": (language_model(PLAIN, attention={"eps": 1e-8}), r"decoder\.attention\.eps is 1e-08"),
    "ungated": (
        language_model(PLAIN | {"activation": "gelu"}),
        r"decoder\.feed_forward\.activation is 'gelu'.*DeepSeek-V3",
    ),
    "layer norm": (language_model(PLAIN, decoder={"norm": {}}), r"decoder\.norm\.kind is 'layer'.*DeepSeek-V3"),
    "post-norm": (language_model(PLAIN, decoder={"norm_position": "post"}), r"decoder\.norm_position is 'post'"),
    "scaled embeddings": (language_model(PLAIN, embedding={}), r"embedding\.scale is True"),
    "no positions": (
        language_model(PLAIN, attention={"rope_head_dim": 0}, position={"kind": "none"}),
        r"position\.kind is 'none'.*DeepSeek-V3",
    ),
    "heads that do not divide": (
        language_model(SOFTMAX, attention={"heads": 3}),
        r"decoder\.attention\.heads is 3.*V2.*divide 16",
    ),
    "an odd head": (
        language_model(SOFTMAX, attention={"head_dim": 3}),
        r"decoder\.attention\.head_dim is 3.*V2.*always even",
    ),
    "an odd latent": (
        language_model(SOFTMAX, attention={"kv_latent": 7}),
        r"decoder\.attention\.kv_latent is 7.*V2.*always even",
    ),
    "dense prefix with another activation": (
        language_model(SOFTMAX, decoder={"dense_prefix": {"feed_forward": PLAIN | {"activation": "geglu"}}}),
        r"decoder\.dense_prefix\.feed_forward\.activation is 'geglu'.*DeepSeek-V2.*'swiglu'",
    ),
    "prefix of experts": (
        language_model(SOFTMAX, decoder={"dense_prefix": {"feed_forward": SOFTMAX | {"experts": 3}}}),
        r"decoder\.dense_prefix\.feed_forward\.kind is 'moe'.*DeepSeek-V2.*'dense'",
    ),
    "dense layers of two sizes": (language_model(PLAIN, decoder=DENSE_PREFIX), r"decoder\.dense_prefix"),
    "dense prefix with multi-head attention": (
        language_model(PLAIN, decoder=DENSE_PREFIX | {"attention": {"heads": 4, "bias": False}}),
        r"decoder\.dense_prefix\.layers is 2.*Llama",
    ),
}


@pytest.mark.parametrize(("plain", "message"), NOT_EXPORTABLE.values(), ids=NOT_EXPORTABLE.keys())
def test_setting_without_a_counterpart_is_refused_and_nothing_is_written(plain, message, tmp_path):
    save_ours(plain, tmp_path / "ours")
    with pytest.raises(UserError, match=message) as caught:
        export_huggingface(tmp_path / "ours", tmp_path / "theirs")
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["ours"]


def test_ctranslate2_export_refuses_a_dense_prefix(tmp_path):
    model = read_config(language_model(PLAIN, decoder=DENSE_PREFIX | {"attention": {"heads": 4}})).build()
    save_model(model, tmp_path / "ours", tokenizer=Tokenizer(models.WordLevel({"word": 0}, unk_token="word")))
    with pytest.raises(UserError, match=r"decoder\.dense_prefix\.layers is 2, which has no counterpart in CTranslate2"):
        export_ctranslate2(tmp_path / "ours", tmp_path / "theirs")


def test_imported_model_can_be_trained(from_hf):
    """Every parameter gets a gradient."""
    model = from_hf(build("V3, one dense layer")).model.train()
    nn.functional.cross_entropy(model(ids(4, 20, 41)).flatten(0, 1), ids(4, 20, 41, seed=2).flatten()).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
