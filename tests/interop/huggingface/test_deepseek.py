"""DeepSeek-V2 and -V3 of transformers give the same logits after they are imported, and after the way back.

Their norms, routers and (in V2) turned features are computed in float32 whatever a model is in. Where they are compared
in float64, that word means another type in their code.
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
from regard.attention import LatentConfig, YarnScaling
from regard.cli import app
from regard.errors import UserError
from regard.interop import export_ctranslate2, export_huggingface, import_huggingface
from regard.interop.huggingface.deepseek import DEEPSEEK_V2, DEEPSEEK_V3
from regard.interop.huggingface.settings import Settings
from regard.interop.huggingface.weights import Weights
from regard.model import ExpertsConfig, FeedForwardConfig, count_parameters, read_config
from regard.run import save

from .support import ids, shake

pytestmark = pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")  # of experts that are not there

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
    "V2, one dense layer first": {},
    "V2, dense alone, biases": DENSE | {"attention_bias": True, "mlp_bias": True},
    "V2, experts alone, no query latent, tied": {
        "first_k_dense_replace": 0,
        "q_lora_rank": None,
        "n_shared_experts": 2,
        "tie_word_embeddings": True,
    },
    "V2, groups, yarn": GROUPED | {"routed_scaling_factor": 4.0, "rope_parameters": YARN, "hidden_act": "gelu"},
    "V2, none shared, one expert, coarse norm": {
        "n_shared_experts": 0,
        "num_experts_per_tok": 1,
        "first_k_dense_replace": 2,
        "rms_norm_eps": 0.1,
    },
}
V3 = {
    "V3, one dense layer first": {},
    "V3, dense alone, no query latent": DENSE | {"q_lora_rank": None},
    "V3, experts alone, one group, tied": {
        "first_k_dense_replace": 0,
        "n_group": 1,
        "topk_group": 1,
        "tie_word_embeddings": True,
        "norm_topk_prob": False,
    },
    "V3, yarn, biases, none shared": {"rope_parameters": YARN, "attention_bias": True, "n_shared_experts": 0},
    "V3, turned in halves, odd heads": {
        "rope_interleave": False,
        "num_attention_heads": 5,
        "num_key_value_heads": 5,
        "n_shared_experts": 3,
        "n_group": 4,
        "topk_group": 3,
        "first_k_dense_replace": 2,
    },
    "V3, stretched by its base": {"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 500.0}},
}
UNLIKE = V2 | V3
EVERY = pytest.mark.parametrize("name", UNLIKE)


def build(name, **changes):
    settings = SMALL | UNLIKE[name] | changes
    # Their fast experts want numbers in lines of 16 bytes.
    settings["experts_implementation"] = "eager"
    if name.startswith("V2"):
        return DeepseekV2ForCausalLM(DeepseekV2Config(**settings))
    return DeepseekV3ForCausalLM(DeepseekV3Config(**{"n_group": 2, "topk_group": 1} | settings))


def open_theirs(directory):
    """Their model, into which every tensor must have found its way, and no other."""
    model, info = AutoModelForCausalLM.from_pretrained(
        directory, output_loading_info=True, experts_implementation="eager"
    )
    assert not [*info["missing_keys"], *info["unexpected_keys"], *info["mismatched_keys"]]
    return model.eval()


@torch.no_grad()
def scores(model):
    return model(ids(2, 11, 41)).logits


@EVERY
def test_logits_and_cached_decoding_are_those_of_transformers(name, bring, same, check_padded_writer):
    theirs = build(name)
    ours = bring(theirs)
    same(ours.logits(ids(2, 11, 41)), scores(theirs), bound=CLOSE)
    check_padded_writer(theirs, ours)
    with torch.no_grad():
        for sizes in ([1] * 9, [4, 1, 3, 1]):
            tokens, past, cache = ids(2, 9, 41), None, ours.model.start(2, 9)
            for chunk in tokens.split(sizes, dim=1):
                found, cache = ours.model.step(chunk, cache)
                expected = theirs(chunk, past_key_values=past, use_cache=True)
                past = expected.past_key_values
                same(found, expected.logits, bound=CLOSE)


class Wide:
    """PyTorch, but float32 is float64, and angles have the cosines and sines that they have elsewhere."""

    float32 = torch.float64

    def polar(self, _, angles):
        return torch.complex(angles.cos(), angles.sin())

    def __getattr__(self, name):
        return getattr(torch, name)


def turned(query, key, angles):
    """What V2 does in complex64, in complex128."""
    wide = angles.to(torch.complex128)[:, None]
    pairs = (torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2)) for x in (query, key))
    return [torch.view_as_real(pair * wide).flatten(3) for pair in pairs]


@EVERY
@torch.no_grad()
def test_both_are_the_same_to_the_last_digits_of_float64(name, bring, monkeypatch):
    theirs = build(name)
    ours = bring(theirs).model.double()
    code = f"transformers.models.deepseek_{name[:2].lower()}.modeling_deepseek_{name[:2].lower()}"
    monkeypatch.setattr(f"{code}.torch", Wide())
    monkeypatch.setattr(f"{code}.apply_rotary_emb", turned, raising=False)
    for attention in ours.decoder.attention():  # theirs are powers of float32
        attention.rotary.frequencies.values = theirs.model.rotary_emb.inv_freq.clone()
    tokens = ids(3, 12, 41)
    expected = theirs.double()(tokens).logits
    assert expected.dtype == torch.float64
    torch.testing.assert_close(ours(tokens), expected, rtol=0, atol=1e-11)


@EVERY
def test_the_way_back_gives_every_tensor_as_it_was_and_the_same_model_again(name, save_theirs, same, tmp_path):
    theirs = build(name)
    directory = save_theirs(theirs)
    import_huggingface(directory, tmp_path / "ours")
    export_huggingface(tmp_path / "ours", tmp_path / "back")
    import_huggingface(tmp_path / "back", tmp_path / "again")
    first, second = (regard.load(tmp_path / place) for place in ("ours", "again"))
    assert first.config == second.config
    for (at, one), other in zip(first.model.state_dict().items(), second.model.state_dict().values(), strict=True):
        assert torch.equal(one, other), at
    back = open_theirs(tmp_path / "back")
    assert type(back) is type(theirs)
    same(scores(back), scores(theirs), bound=CLOSE)
    before, after = (load_file(place / "model.safetensors") for place in (directory, tmp_path / "back"))
    assert before.keys() == after.keys()
    if "halves" not in name:  # which go out side by side
        assert all(torch.equal(after[at], tensor) for at, tensor in before.items())


def test_settings_become_ours(bring):
    config = bring(build("V3, turned in halves, odd heads", rope_parameters=YARN, rms_norm_eps=1e-5)).config
    stack, attention, experts = config.decoder, config.decoder.attention, config.decoder.feed_forward
    assert (stack.first.layers, stack.first.feed_forward.hidden, stack.first.feed_forward.kind) == (2, 32, "dense")
    assert isinstance(attention, LatentConfig)
    assert (attention.latent, attention.query_latent, attention.epsilon, stack.norm.epsilon) == (8, 12, 1e-6, 1e-5)
    assert attention.scale == pytest.approx(10**-0.5 * (0.07 * torch.tensor(8.0).log().item() + 1) ** 2)
    assert isinstance(config.position.scaling, YarnScaling)
    assert isinstance(experts, ExpertsConfig)
    assert (experts.gate, experts.group_score, experts.balancing, experts.normalise) == (
        "sigmoid",
        "best-two",
        "bias",
        True,
    )
    assert (experts.experts, experts.active, experts.shared, experts.groups, experts.active_groups) == (8, 3, 3, 4, 3)


def test_the_correction_of_choices_counts(bring, same):
    """Else a bias that is never read would be as good."""
    ours = bring(build("V3, one dense layer first"))
    tokens = ids(2, 11, 41)
    before = ours.logits(tokens)
    for name, buffer in ours.model.named_buffers():
        if name.endswith("correction"):
            buffer.zero_()
    assert (ours.logits(tokens) - before).abs().max() > 0.01


# Other forms of files


def test_experts_that_are_stored_stacked_are_taken_apart(tmp_path, same):
    theirs = shake(build("V2, one dense layer first"))
    theirs.save_pretrained(tmp_path / "theirs", save_original_format=False)
    assert "model.layers.1.mlp.experts.gate_up_proj" in load_file(tmp_path / "theirs" / "model.safetensors")
    import_huggingface(tmp_path / "theirs", tmp_path / "ours")
    same(regard.load(tmp_path / "ours").logits(ids(2, 11, 41)), scores(theirs), bound=CLOSE)


def test_layers_that_look_further_ahead_are_left_out(save_theirs, tmp_path, same):
    theirs = build("V3, one dense layer first")
    directory = save_theirs(theirs, num_nextn_predict_layers=1, auto_map={"AutoConfig": "configuration_deepseek.A"})
    tensors = load_file(directory / "model.safetensors")
    more = {name.replace("layers.2", "layers.3"): one.clone() for name, one in tensors.items() if "layers.2" in name}
    save_file(tensors | more | {"model.layers.3.eh_proj.weight": torch.ones(2, 4)}, directory / "model.safetensors")
    import_huggingface(directory, tmp_path / "ours")
    same(regard.load(tmp_path / "ours").logits(ids(2, 11, 41)), scores(theirs), bound=CLOSE)
    export_huggingface(tmp_path / "ours", tmp_path / "back")
    settings = json.loads((tmp_path / "back" / "config.json").read_text())
    assert settings["num_nextn_predict_layers"] == 0
    assert "auto_map" not in settings
    open_theirs(tmp_path / "back")


def test_experts_and_shared_ones_that_are_null_are_none(save_theirs, tmp_path, same):
    """By DeepSeek's own code; transformers opens only what is exported then."""
    theirs = build("V2, dense alone, biases")
    directory = save_theirs(theirs, n_routed_experts=None, first_k_dense_replace=1)
    import_huggingface(directory, tmp_path / "ours")
    assert isinstance(regard.load(tmp_path / "ours").config.decoder.feed_forward, FeedForwardConfig)
    export_huggingface(tmp_path / "ours", tmp_path / "back")
    same(scores(open_theirs(tmp_path / "back")), scores(theirs), bound=CLOSE)
    directory = save_theirs(build("V2, none shared, one expert, coarse norm"), n_shared_experts=None)
    import_huggingface(directory, tmp_path / "others")
    export_huggingface(tmp_path / "others", tmp_path / "others back")
    assert open_theirs(tmp_path / "others back").config.n_shared_experts == 0


def test_half_precision_stays_half_precision_and_choices_stay_fine(save_theirs, tmp_path):
    directory = save_theirs(build("V3, one dense layer first").to(torch.bfloat16))
    path = directory / "model.safetensors"
    save_file({name: one.float() if "correction" in name else one for name, one in load_file(path).items()}, path)
    import_huggingface(directory, tmp_path / "ours")
    export_huggingface(tmp_path / "ours", tmp_path / "back")
    before, after = load_file(path), load_file(tmp_path / "back" / "model.safetensors")
    assert {name: one.dtype for name, one in after.items()} == {name: one.dtype for name, one in before.items()}
    assert open_theirs(tmp_path / "back").dtype == torch.bfloat16


def test_what_is_left_out_is_what_transformers_takes_for_it():
    """Checked on settings alone: such models are large."""
    said = {"hidden_size": 64, "intermediate_size": 8, "num_hidden_layers": 5, "num_attention_heads": 4}
    for family, kind in ((DEEPSEEK_V2, DeepseekV2Config), (DEEPSEEK_V3, DeepseekV3Config)):
        given = said | {"vocab_size": 9, "num_experts_per_tok": 3}
        theirs = kind(**given).to_dict() | {"num_key_value_heads": 4}
        found = family.read(Settings(given, "config.json"), Weights([], "model."))
        assert found == family.read(Settings(theirs, "config.json"), Weights([], "model."))


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


@pytest.mark.parametrize(("family", "parameters", "given"), PUBLISHED.values(), ids=PUBLISHED.keys())
def test_published_models_have_as_many_parameters_as_published(family, parameters, given):
    """DeepSeek-AI 2024, "DeepSeek-V2", appendix B, and "DeepSeek-V3", §4.2: 15.7 B and 671 B."""
    config = family.read(Settings(given, "config.json"), Weights([], "model."))
    with torch.device("meta"):
        assert count_parameters(config.build()) == pytest.approx(parameters, rel=0.005)


# By the command line


def test_a_model_goes_in_and_out_by_the_command_line(save_theirs, tmp_path, same):
    theirs = build("V2, groups, yarn")
    run = CliRunner()
    done = run.invoke(app, ["import", str(save_theirs(theirs)), str(tmp_path / "ours")])
    assert done.exit_code == 0
    assert "imported DeepSeek-V2 with" in done.output
    done = run.invoke(app, ["export", str(tmp_path / "ours"), "hf", str(tmp_path / "back")])
    assert done.exit_code == 0
    assert "exported as DeepseekV2ForCausalLM with" in done.output
    same(scores(open_theirs(tmp_path / "back")), scores(theirs), bound=CLOSE)


# What cannot be

WRONG = {
    "experts in every other layer": ("V2", {"moe_layer_freq": 2}, "moe_layer_freq is 2, which regard cannot import"),
    "fewer key heads": ("V3", {"num_key_value_heads": 2}, "num_key_value_heads is 2, .* only 4 can be"),
    "normalised shares": ("V2", {"norm_topk_prob": True}, "norm_topk_prob is true, which regard cannot import"),
    "sigmoids in V2": ("V2", {"scoring_func": "sigmoid"}, "scoring_func is 'sigmoid'.* only softmax can be"),
    "softmax in V3": ("V3", {"scoring_func": "softmax"}, "scoring_func is 'softmax'.* only sigmoid can be"),
    "another way to choose": ("V2", {"topk_method": "noaux_tc"}, "topk_method is 'noaux_tc', but should be one of"),
    "the way of V2 in V3": ("V3", {"topk_method": "greedy"}, "topk_method is 'greedy'.* only noaux_tc can be"),
    "biases of shared experts": ("V2", {"mlp_bias": True}, "mlp_bias is true, which regard cannot import"),
    "no number of experts to go to": ("V2", {"num_experts_per_tok": None}, "num_experts_per_tok is missing"),
    "more experts than there are": ("V2", {"num_experts_per_tok": 9}, "num_experts_per_tok: found 9; expected no more"),
    "groups that do not divide": ("V3", {"n_group": 3}, "n_group: found 3; expected a number that divides"),
    "more groups than there are": ("V3", {"topk_group": 3}, "topk_group: found 3; expected no more than"),
    "groups of one": ("V3", {"n_group": 8, "topk_group": 4}, "n_group: found 'best-two'; groups of one"),
    "one expert, normalised": ("V3", {"num_experts_per_tok": 1}, "norm_topk_prob: the gate of a single expert"),
    "gates of nothing": ("V3", {"routed_scaling_factor": 0.0}, "routed_scaling_factor: found 0.0; expected greater"),
    "an odd part to turn": ("V3", {"qk_rope_head_dim": 3}, "qk_rope_head_dim: found 3; rotary positions turn pairs"),
    "a negative number of dense layers": ("V2", {"first_k_dense_replace": -1}, "first_k_dense_replace is -1"),
    "an unknown bend": ("V3", {"hidden_act": "relu"}, "hidden_act is 'relu', but should be one of silu"),
    "an unknown scaling": ("V3", {"rope_scaling": {"type": "deep"}}, "rope_scaling: type is 'deep'"),
    "quantised": ("V3", {"quantization_config": {"quant_method": "fp8"}}, "quantization_config says"),
    "more experts than are stored": ("V2", {"n_routed_experts": 9}, r"gate\.weight|experts\.8\."),
    "fewer experts than are stored": ("V2", {"n_routed_experts": 4}, r"shape|no place"),
    "more dense layers than are stored": (
        "V2",
        {"first_k_dense_replace": 2},
        r"lacks the tensor model\.layers\.1\.mlp\.gate_proj\.weight",
    ),
    "an unlike latent": ("V3", {"kv_lora_rank": 9}, r"kv_a_layernorm\.weight has the shape \(8,\).*\(9,\)"),
}


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A model of each, to change settings of."""
    places = {}
    for version in ("V2", "V3"):
        places[version] = tmp_path_factory.mktemp("stored") / version
        shake(build(f"{version}, one dense layer first")).save_pretrained(places[version])
    return places


@pytest.mark.parametrize(("version", "changes", "sentence"), WRONG.values(), ids=WRONG.keys())
def test_what_cannot_be_is_said_in_one_sentence(version, changes, sentence, stored, tmp_path):
    (tmp_path / "theirs").mkdir()
    for path in stored[version].iterdir():
        (tmp_path / "theirs" / path.name).symlink_to(path)
    settings = json.loads((stored[version] / "config.json").read_text())
    (tmp_path / "theirs" / "config.json").unlink()
    (tmp_path / "theirs" / "config.json").write_text(json.dumps(settings | changes))
    with pytest.raises(UserError, match=sentence) as caught:
        import_huggingface(tmp_path / "theirs", tmp_path / "ours")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "ours").exists()


# Models of our own

LATENT = {"kind": "latent", "heads": 4, "latent": 6, "head_width": 2, "rotary_width": 4, "value_width": 5}
PLAIN = {"hidden": 20, "activation": "swiglu", "bias": False}
EXPERTS = PLAIN | {"kind": "experts", "hidden": 8, "experts": 6, "active": 2}
SHARES = EXPERTS | {"normalise": False}
SIGMOIDS = EXPERTS | {"gate": "sigmoid"}


def writer(feed_forward, *, attention=None, **changes):
    decoder = {
        "layers": 3,
        "norm": {"kind": "rms", "epsilon": 1e-6},
        "attention": LATENT | (attention or {}),
        "feed_forward": feed_forward,
    }
    return {
        "kind": "language-model",
        "vocabulary": 41,
        "width": 16,
        "position": {"kind": "rotary"},
        "embedding": {"scale": False},
        "decoder": decoder | changes.pop("decoder", {}),
        **changes,
    }


FIRST = {"first": {"layers": 2, "feed_forward": PLAIN}}
STRETCHED = {"kind": "rotary", "base": 50.0, "scaling": {"kind": "yarn", "factor": 4.0, "trained": 8}}
OURS = {
    "dense": ("V3", writer(PLAIN, tie=False)),
    "dense, biases": ("V2", writer(PLAIN | {"bias": True}, attention={"bias": True, "query_latent": 3})),
    "softmax": ("V2", writer(SHARES | {"shared": 2, "factor": 3.0})),
    "softmax, groups, first ones": (
        "V2",
        writer(SHARES | {"groups": 3, "active_groups": 2, "balance": 0.5}, decoder=FIRST, position=STRETCHED),
    ),
    "sigmoids kept busy by a loss": ("V3", writer(SIGMOIDS | {"normalise": False}, attention={"heads": 3})),
    "sigmoids, groups, first ones": (
        "V3",
        writer(
            SIGMOIDS
            | {
                "groups": 2,
                "active_groups": 1,
                "group_score": "best-two",
                "balancing": "bias",
                "rate": 0.1,
                "shared": 1,
            },
            decoder=FIRST,
            tie=False,
        ),
    ),
}


def save_ours(plain, folder):
    torch.manual_seed(0)
    model = read_config(plain).build()
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            tensor.copy_(torch.randn(tensor.shape) * 0.25 + name.endswith("norm.weight"))
    save(model, folder)
    return regard.load(folder)


@pytest.mark.parametrize(("version", "plain"), OURS.values(), ids=OURS.keys())
def test_a_model_of_our_own_gives_the_same_logits(version, plain, tmp_path, same):
    ours = save_ours(plain, tmp_path / "ours")
    export_huggingface(tmp_path / "ours", tmp_path / "theirs")
    theirs = open_theirs(tmp_path / "theirs")
    assert type(theirs).__name__ == f"Deepseek{version}ForCausalLM"
    same(ours.logits(ids(2, 11, 41)), scores(theirs), bound=CLOSE)


UNLIKE_THEIRS = {
    "normalised shares": (writer(EXPERTS), r"decoder\.feed_forward\.normalise is True.*DeepSeek-V2.*False"),
    "groups by their best": (
        writer(SIGMOIDS | {"groups": 3, "active_groups": 1}),
        r"decoder\.feed_forward\.group_score is 'best'.*DeepSeek-V3.*'best-two'",
    ),
    "biases of experts": (writer(SHARES | {"bias": True}), r"decoder\.feed_forward\.bias is True.*DeepSeek-V2"),
    "a scale": (writer(PLAIN, attention={"scale": 0.5}), r"decoder\.attention\.scale is 0\.5.*DeepSeek-V3"),
    "a window": (
        writer(PLAIN, attention={"pattern": "sliding(3)"}),
        r"decoder\.attention\.pattern is 'sliding\(3\)'.*DeepSeek-V3.*'full'",
    ),
    "fine norms of latents": (writer(PLAIN, attention={"epsilon": 1e-8}), r"decoder\.attention\.epsilon is 1e-08"),
    "ungated": (writer(PLAIN | {"activation": "gelu"}), r"decoder\.feed_forward\.activation is 'gelu'.*DeepSeek-V3"),
    "layer norm": (writer(PLAIN, decoder={"norm": {}}), r"decoder\.norm\.kind is 'layer'.*DeepSeek-V3"),
    "post-norm": (writer(PLAIN, decoder={"order": "post"}), r"decoder\.order is 'post'"),
    "scaled words": (writer(PLAIN, embedding={}), r"embedding\.scale is True"),
    "no positions": (
        writer(PLAIN, attention={"rotary_width": 0}, position={"kind": "none"}),
        r"position\.kind is 'none'.*DeepSeek-V3",
    ),
    "heads that do not divide": (
        writer(SHARES, attention={"heads": 3}),
        r"decoder\.attention\.heads is 3.*V2.*divide 16",
    ),
    "an odd head": (
        writer(SHARES, attention={"head_width": 3}),
        r"decoder\.attention\.head_width is 3.*V2.*always even",
    ),
    "an odd latent": (writer(SHARES, attention={"latent": 7}), r"decoder\.attention\.latent is 7.*V2.*always even"),
    "first ones that are bent otherwise": (
        writer(SHARES, decoder={"first": {"feed_forward": PLAIN | {"activation": "geglu"}}}),
        r"decoder\.first\.feed_forward\.activation is 'geglu'.*DeepSeek-V2.*'swiglu'",
    ),
    "first ones that are experts": (
        writer(SHARES, decoder={"first": {"feed_forward": SHARES | {"experts": 3}}}),
        r"decoder\.first\.feed_forward\.kind is 'experts'.*DeepSeek-V2.*'dense'",
    ),
    "two sizes of dense ones": (writer(PLAIN, decoder=FIRST), r"decoder\.first"),
    "first ones before plain heads": (
        writer(PLAIN, decoder=FIRST | {"attention": {"heads": 4, "bias": False}}),
        r"decoder\.first\.layers is 2.*Llama",
    ),
}


@pytest.mark.parametrize(("plain", "sentence"), UNLIKE_THEIRS.values(), ids=UNLIKE_THEIRS.keys())
def test_a_setting_without_a_counterpart_is_named_and_nothing_is_written(plain, sentence, tmp_path):
    save_ours(plain, tmp_path / "ours")
    with pytest.raises(UserError, match=sentence) as caught:
        export_huggingface(tmp_path / "ours", tmp_path / "theirs")
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["ours"]


def test_ctranslate2_has_one_feed_forward_for_all_layers(tmp_path):
    model = read_config(writer(PLAIN, decoder=FIRST | {"attention": {"heads": 4}})).build()
    save(model, tmp_path / "ours", tokenizer=Tokenizer(models.WordLevel({"word": 0}, unk_token="word")))
    with pytest.raises(UserError, match=r"decoder\.first\.layers is 2, which has no counterpart in CTranslate2"):
        export_ctranslate2(tmp_path / "ours", tmp_path / "theirs")


def test_a_model_can_be_trained_on(bring):
    """Every parameter of an imported model has a gradient, but those of experts that nobody goes to."""
    model = bring(build("V3, one dense layer first")).model.train()
    nn.functional.cross_entropy(model(ids(4, 20, 41)).flatten(0, 1), ids(4, 20, 41, seed=2).flatten()).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
