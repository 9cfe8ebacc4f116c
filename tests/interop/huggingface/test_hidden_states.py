"""The hidden states of imported models are transformers' `hidden_states`, and so are the vectors of words."""

import pytest
import torch
from tokenizers import BertWordPieceTokenizer
from transformers import (
    BertConfig,
    BertModel,
    BertTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MarianConfig,
    MarianMTModel,
)

import regard
from regard.interop import import_huggingface
from tests.interop.huggingface.support import ids, randomize
from tests.interop.huggingface.texts import ENGLISH

SIZES = {"vocab_size": 47, "num_hidden_layers": 3, "hidden_size": 24, "intermediate_size": 33, "num_attention_heads": 6}
MARIAN = {"encoder_layers": 3, "decoder_layers": 1, "encoder_ffn_dim": 33, "decoder_ffn_dim": 33, "d_model": 24}
MODELS = {
    "BERT": lambda: BertModel(BertConfig(**SIZES)),
    "GPT-2": lambda: GPT2LMHeadModel(GPT2Config(vocab_size=47, n_positions=20, n_embd=24, n_layer=3, n_head=6)),
    "Llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
    "Marian": lambda: MarianMTModel(
        MarianConfig(vocab_size=47, encoder_attention_heads=6, decoder_attention_heads=6, pad_token_id=46, **MARIAN)
    ),
}


@pytest.mark.parametrize("build", MODELS.values(), ids=MODELS)
@torch.no_grad()
def test_every_layer_equals_transformers(build, from_hf, equal_tensors):
    theirs = randomize(build(), 1)
    ours, tokens, lengths = from_hf(theirs).model, ids(3, 9, 46), torch.tensor([9, 2, 5])
    mask = torch.arange(9) < lengths[:, None]
    reader = theirs.get_encoder() if isinstance(theirs, MarianMTModel) else theirs
    expected = reader(tokens, attention_mask=mask.long(), output_hidden_states=True).hidden_states
    found = ours.hidden_states(tokens, lengths)
    assert len(found) == len(expected) == 4
    for ours_in_layer, theirs_in_layer in zip(found, expected, strict=True):
        equal_tensors(ours_in_layer[mask], theirs_in_layer[mask])


@torch.no_grad()
def test_vectors_of_words_are_the_means_of_their_pieces(tmp_path):
    wordpiece = BertWordPieceTokenizer()
    wordpiece.train_from_iterator(ENGLISH * 5, vocab_size=90, show_progress=False)
    directory = tmp_path / "theirs"
    directory.mkdir()
    wordpiece.save_model(str(directory))
    tokenizer = BertTokenizer.from_pretrained(directory)
    tokenizer.save_pretrained(directory)
    theirs = randomize(BertModel(BertConfig(**SIZES | {"vocab_size": len(tokenizer)})), 1)
    theirs.save_pretrained(directory)
    import_huggingface(directory, tmp_path / "ours")
    words = ENGLISH[0].rstrip(".").split()
    encoded = tokenizer(words, is_split_into_words=True, return_tensors="pt")
    pieces = encoded.word_ids()
    assert max(map(pieces.count, range(len(words)))) > 1
    states = theirs(**encoded, output_hidden_states=True).hidden_states
    for layer, expected in enumerate(states):
        (found,) = regard.load(tmp_path / "ours").contextual_vectors([words], layer=layer)
        means = [
            expected[0, [place for place, word in enumerate(pieces) if word == n]].mean(0) for n in range(len(words))
        ]
        torch.testing.assert_close(found.vectors, torch.stack(means), rtol=0, atol=1e-5)
