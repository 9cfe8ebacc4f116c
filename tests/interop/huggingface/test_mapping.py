"""Mapping rules between our tensors and those of Hugging Face are invertible and complete."""

import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MarianConfig,
    MarianMTModel,
    MistralConfig,
    MistralForCausalLM,
    ViTConfig,
    ViTForImageClassification,
    ViTModel,
)

from regard.interop.huggingface.architectures.bart import BART
from regard.interop.huggingface.architectures.bert import (
    BERT,
    BERT_MASKED_LM,
    BERT_SEQUENCE_CLASSIFICATION,
    BERT_TOKEN_CLASSIFICATION,
)
from regard.interop.huggingface.architectures.gpt2 import GPT2
from regard.interop.huggingface.architectures.llama import LLAMA
from regard.interop.huggingface.architectures.marian import MARIAN
from regard.interop.huggingface.architectures.mistral import MISTRAL
from regard.interop.huggingface.architectures.vit import VIT, VIT_CLASSIFICATION
from regard.interop.huggingface.mapping import Concatenated, ConvPatches, SkipRows, Transform, Transpose, Unsqueeze

TRANSFORMS = {
    "identity": (Transform(), (3, 4)),
    "transpose": (Transpose(), (3, 4)),
    "concatenated": (Concatenated(3), (9, 4)),
    "concatenated and transposed": (Concatenated(3, transposed=True), (4, 9)),
    "unsqueezed": (Unsqueeze(), (1, 5)),
    "unsqueezed twice": (Unsqueeze(2), (1, 1, 5)),
    "convolution patches": (ConvPatches(3, 2), (5, 3, 2, 2)),
}


@pytest.mark.parametrize(("transform", "shape"), TRANSFORMS.values(), ids=TRANSFORMS.keys())
def test_to_hf_inverts_from_hf(transform, shape):
    theirs = torch.randn(shape)
    assert torch.equal(transform.to_hf(transform.from_hf(theirs)), theirs)


@pytest.mark.parametrize(("transform", "shape"), TRANSFORMS.values(), ids=TRANSFORMS.keys())
def test_from_hf_inverts_to_hf(transform, shape):
    ours = transform.from_hf(torch.randn(shape))
    again = transform.from_hf(transform.to_hf(ours))
    assert all(torch.equal(one, other) for one, other in zip(ours, again, strict=True))


def test_skipped_rows_are_exported_as_zeros():
    theirs = torch.randn(6, 4)
    back = SkipRows(2).to_hf(SkipRows(2).from_hf(theirs))
    assert torch.equal(back[2:], theirs[2:])
    assert not back[:2].any()


def test_parts_of_a_concatenated_tensor_do_not_share_memory():
    parts = Concatenated(2).from_hf(torch.randn(4, 3))
    assert len({part.untyped_storage().data_ptr() for part in parts}) == 2


SIDES = {"encoder_layers": 2, "decoder_layers": 1, "encoder_ffn_dim": 10, "decoder_ffn_dim": 14}
STACK = {"hidden_size": 12, "intermediate_size": 10, "num_hidden_layers": 2, "num_attention_heads": 3}
BERT_CONFIG = BertConfig(vocab_size=19, max_position_embeddings=9, **STACK)
VIT_CONFIG = ViTConfig(image_size=8, patch_size=4, **STACK)
HEADS = {"encoder_attention_heads": 3, "decoder_attention_heads": 2, "d_model": 12}
MODELS = {
    "Marian": (MARIAN, lambda: MarianMTModel(MarianConfig(vocab_size=19, pad_token_id=1, **SIDES, **HEADS))),
    "Marian, two vocabularies": (
        MARIAN,
        lambda: MarianMTModel(
            MarianConfig(
                vocab_size=19,
                decoder_vocab_size=17,
                share_encoder_decoder_embeddings=False,
                pad_token_id=1,
                **SIDES,
                **HEADS,
            )
        ),
    ),
    "BART": (BART, lambda: BartForConditionalGeneration(BartConfig(vocab_size=19, **SIDES, **HEADS))),
    "GPT-2": (GPT2, lambda: GPT2LMHeadModel(GPT2Config(vocab_size=19, n_embd=12, n_head=3, n_layer=2, n_positions=9))),
    "Llama": (
        LLAMA,
        lambda: LlamaForCausalLM(
            LlamaConfig(
                vocab_size=19,
                hidden_size=12,
                intermediate_size=10,
                num_hidden_layers=2,
                num_attention_heads=3,
                num_key_value_heads=1,
                attention_bias=True,
            )
        ),
    ),
    "Mistral": (MISTRAL, lambda: MistralForCausalLM(MistralConfig(vocab_size=19, num_key_value_heads=1, **STACK))),
    "BERT": (BERT, lambda: BertModel(BERT_CONFIG)),
    "BERT, masked LM": (BERT_MASKED_LM, lambda: BertForMaskedLM(BERT_CONFIG)),
    "BERT, sequence classification": (BERT_SEQUENCE_CLASSIFICATION, lambda: BertForSequenceClassification(BERT_CONFIG)),
    "BERT, token classification": (BERT_TOKEN_CLASSIFICATION, lambda: BertForTokenClassification(BERT_CONFIG)),
    "ViT": (VIT, lambda: ViTModel(VIT_CONFIG)),
    "ViT, image classification": (VIT_CLASSIFICATION, lambda: ViTForImageClassification(VIT_CONFIG)),
}


@pytest.mark.parametrize(("architecture", "build"), MODELS.values(), ids=MODELS.keys())
def test_rules_of_an_architecture_reproduce_its_file(architecture, build, from_hf, tmp_path):
    ours = from_hf(build())
    state = ours.model.state_dict()
    expected = load_file(tmp_path / "theirs" / "model.safetensors")
    exported = {
        rule.hf: rule.transform.to_hf([state[name] for name in rule.ours])
        for rule in architecture.rules(ours.config)
        if rule.ours[0] in state
    }
    assert set(exported) == {name.removeprefix(architecture.prefix) for name in expected}
    for name, tensor in expected.items():
        back = exported[name.removeprefix(architecture.prefix)]
        skipped = 2 if architecture is BART and "embed_positions" in name else 0
        assert torch.equal(back[skipped:], tensor[skipped:]), name
