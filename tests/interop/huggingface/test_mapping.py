"""Rules lead in and back out again, and nothing on either side is left without its other half."""

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

from regard.interop.huggingface.bart import BART
from regard.interop.huggingface.bert import BERT, BERT_CLASSIFY, BERT_FILL, BERT_TAG
from regard.interop.huggingface.gpt2 import GPT2
from regard.interop.huggingface.llama import LLAMA
from regard.interop.huggingface.mapping import Change, Joined, Offset, Row, Squares, Transposed
from regard.interop.huggingface.marian import MARIAN
from regard.interop.huggingface.mistral import MISTRAL
from regard.interop.huggingface.vit import VIT, VIT_CLASSIFY

CHANGES = {
    "none": (Change(), (3, 4)),
    "transposed": (Transposed(), (3, 4)),
    "joined": (Joined(3), (9, 4)),
    "joined and transposed": (Joined(3, transposed=True), (4, 9)),
    "a row": (Row(), (1, 5)),
    "a row of rows": (Row(2), (1, 1, 5)),
    "squares": (Squares(3, 2), (5, 3, 2, 2)),
}


@pytest.mark.parametrize(("change", "shape"), CHANGES.values(), ids=CHANGES.keys())
def test_what_is_brought_can_be_sent_back(change, shape):
    theirs = torch.randn(shape)
    assert torch.equal(change.send(change.bring(theirs)), theirs)


@pytest.mark.parametrize(("change", "shape"), CHANGES.values(), ids=CHANGES.keys())
def test_what_is_sent_can_be_brought_back(change, shape):
    ours = change.bring(torch.randn(shape))
    again = change.bring(change.send(ours))
    assert all(torch.equal(one, other) for one, other in zip(ours, again, strict=True))


def test_rows_that_are_never_read_come_back_as_zeros():
    theirs = torch.randn(6, 4)
    back = Offset(2).send(Offset(2).bring(theirs))
    assert torch.equal(back[2:], theirs[2:])
    assert not back[:2].any()


def test_joined_parts_do_not_share_memory():
    parts = Joined(2).bring(torch.randn(4, 3))
    assert len({part.untyped_storage().data_ptr() for part in parts}) == 2


SIDES = {"encoder_layers": 2, "decoder_layers": 1, "encoder_ffn_dim": 10, "decoder_ffn_dim": 14}
STACK = {"hidden_size": 12, "intermediate_size": 10, "num_hidden_layers": 2, "num_attention_heads": 3}
BOTH_WAYS = BertConfig(vocab_size=19, max_position_embeddings=9, **STACK)
PICTURES = ViTConfig(image_size=8, patch_size=4, **STACK)
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
    "BERT": (BERT, lambda: BertModel(BOTH_WAYS)),
    "BERT, gaps": (BERT_FILL, lambda: BertForMaskedLM(BOTH_WAYS)),
    "BERT, labels of texts": (BERT_CLASSIFY, lambda: BertForSequenceClassification(BOTH_WAYS)),
    "BERT, labels of tokens": (BERT_TAG, lambda: BertForTokenClassification(BOTH_WAYS)),
    "ViT": (VIT, lambda: ViTModel(PICTURES)),
    "ViT, classes": (VIT_CLASSIFY, lambda: ViTForImageClassification(PICTURES)),
}


@pytest.mark.parametrize(("family", "build"), MODELS.values(), ids=MODELS.keys())
def test_a_family_s_rules_give_its_file_back(family, build, bring, tmp_path):
    ours = bring(build())
    state = ours.model.state_dict()
    held = load_file(tmp_path / "theirs" / "model.safetensors")
    sent = {
        rule.theirs: rule.change.send([state[name] for name in rule.ours])
        for rule in family.rules(ours.config)
        if rule.ours[0] in state
    }
    assert set(sent) == {name.removeprefix(family.prefix) for name in held}
    for name, tensor in held.items():
        back = sent[name.removeprefix(family.prefix)]
        unread = 2 if family is BART and "embed_positions" in name else 0
        assert torch.equal(back[unread:], tensor[unread:]), name
