"""Our search generates from an imported model what transformers generates from the original.

Length penalty. Beam search in transformers divides the sum of log-probabilities by length^length_penalty, where the
length counts the generated tokens and the EOS token but not the prompt (`_update_finished_beams`: cur_len + 1 -
decoder_prompt_len). That is `LengthPenalty(kind="power", alpha=length_penalty)`. With early_stopping="never" it stops,
as we do, when no live hypothesis could win at the maximum length.

EOS. One difference remains: of the best 2 · beams candidates of a step, transformers accepts EOS only among the first
`beam_size` (`top_num_beam_mask`), we accept it in all of them. `HuggingFaceBeamSearch` does as transformers, so that
outputs are equal token by token; our `BeamSearch` must then find nothing worse.

EOS is not forced at the maximum length, which the default configs of Marian and BART would do.
"""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from regard.decode import BeamSearch, Greedy, LengthPenalty, beam_search, score_forced, search
from regard.decode.beam import BeamCandidates
from regard.interop import import_huggingface
from regard.run import load_model

transformers = pytest.importorskip("transformers")
transformers.utils.logging.disable_progress_bar()

LIMIT, BEAMS, INPUTS, BATCH = 11, 4, 200, 100
PENALTIES = [0.0, 1.0]
MARIAN = {
    "vocab_size": 37,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 40,
    "tie_word_embeddings": False,
    "scale_embedding": True,
    "pad_token_id": 36,
    "decoder_start_token_id": 36,
    "eos_token_id": 0,
}
BART = MARIAN | {"pad_token_id": 1, "decoder_start_token_id": 2, "eos_token_id": 3}
GPT2 = {"vocab_size": 43, "n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 40, "tie_word_embeddings": False}
MISTRAL = {
    "vocab_size": 43,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "sliding_window": 5,
}


class HuggingFaceBeamSearch(BeamSearch):
    """Beam search in which only a candidate among the `beam_size` best may end with EOS."""

    def candidates(self, logits: Tensor) -> BeamCandidates:
        candidates = super().candidates(logits)
        late = (torch.arange(candidates.tokens.shape[1]) >= self.beam_size) & (candidates.tokens == self.eos)
        logprobs = candidates.hypotheses.logprobs.masked_fill(late, float("-inf"))
        return candidates._replace(hypotheses=candidates.hypotheses._replace(logprobs=logprobs))


class ModelPair:
    """A transformers model with random weights, the same model imported, both in float64, and random inputs."""

    def __init__(self, theirs: Any, folder: Path, eos: int, pad: int) -> None:
        theirs.save_pretrained(folder / "theirs")
        import_huggingface(folder / "theirs", folder / "ours")
        self.ours = load_model(folder / "ours").model.double().eval()
        self.theirs, self.eos, self.pad = theirs.double().eval(), eos, pad
        self.is_translator = theirs.config.is_encoder_decoder
        start = theirs.config.decoder_start_token_id if self.is_translator else None
        self.theirs.generation_config = transformers.GenerationConfig(
            eos_token_id=eos, pad_token_id=pad, decoder_start_token_id=start
        )
        random = torch.Generator().manual_seed(5)
        tokens = torch.tensor([token for token in range(theirs.config.vocab_size) if token not in (eos, pad, start)])
        lengths = torch.randint(1, 13, (INPUTS,), generator=random).tolist()
        self.inputs = [tokens[torch.randint(len(tokens), (length,), generator=random)] for length in lengths]

    def batches(self) -> list[list[Tensor]]:
        return [self.inputs[start : start + BATCH] for start in range(0, INPUTS, BATCH)]

    @cache  # noqa: B019 (there are four pairs, and each is used several times)
    def hf_outputs(self, **options: Any) -> list[tuple[int, ...]]:
        """Generated tokens, with EOS if the output is finished."""
        outputs = []
        for batch in self.batches():
            side = "right" if self.is_translator else "left"
            ids = torch.nn.utils.rnn.pad_sequence(batch, True, self.pad, padding_side=side)
            mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(one) for one in batch], True, 0, padding_side=side)
            out = self.theirs.generate(
                ids, attention_mask=mask, max_new_tokens=LIMIT, do_sample=False, early_stopping="never", **options
            )
            rows = out[:, 1 if self.is_translator else ids.shape[1] :].tolist()
            outputs += [tuple(row[: row.index(self.eos) + 1] if self.eos in row else row) for row in rows]
        return outputs

    def state(self, batch: list[Tensor]) -> tuple[Any, Tensor]:
        """Our decoding state for some inputs, and the last token of each."""
        lengths = torch.tensor([len(one) for one in batch])
        padded = torch.nn.utils.rnn.pad_sequence(batch, batch_first=True, padding_value=self.pad)
        if self.is_translator:
            start = self.theirs.config.decoder_start_token_id
            return self.ours.start(padded, LIMIT, lengths), torch.full((len(batch),), start)
        state = self.ours.start(len(batch), padded.shape[1] + LIMIT)
        if padded.shape[1] > 1:
            _, state = self.ours.step(padded[:, :-1], state, lengths - 1)
        return state, padded.gather(1, lengths[:, None] - 1)[:, 0]

    def our_outputs(self, make_strategy: Any) -> list[tuple[int, ...]]:
        outputs = []
        for batch in self.batches():
            results = search(self.ours, *self.state(batch), make_strategy([LIMIT] * len(batch)))
            outputs += [(*best.tokens, *([self.eos] if best.ended else [])) for best, *_ in results]
        return outputs


def randomized(model: Any, eos: int, eos_bias: float, seed: int = 3) -> Any:
    """Give the model random weights large enough for diverse outputs, many of which end with EOS."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if "embed_positions" not in name or not isinstance(model, transformers.MarianMTModel):
                gain = ("norm" in name or "ln_" in name) and name.endswith("weight")
                noise = torch.randn(tensor.shape, generator=generator)
                size = 0.1 if tensor.dim() == 1 else 1.0 if "encoder_attn" in name else 0.5
                tensor.copy_(1 + 0.2 * noise if gain else size * noise)
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias[0, eos] = eos_bias
    return model


def marian() -> tuple[Any, int, int]:
    return randomized(transformers.MarianMTModel(transformers.MarianConfig(**MARIAN)), 0, 3.0, seed=1), 0, 36


def bart() -> tuple[Any, int, int]:
    return randomized(transformers.BartForConditionalGeneration(transformers.BartConfig(**BART)), 3, 5.0), 3, 1


def gpt2() -> tuple[Any, int, int]:
    return randomized(transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT2)), 14, 0.0), 14, 42


def mistral() -> tuple[Any, int, int]:
    """With a sliding window shorter than most prompts."""
    return randomized(transformers.MistralForCausalLM(transformers.MistralConfig(**MISTRAL)), 18, 0.0), 18, 42


@pytest.fixture(scope="module", params=[marian, bart, gpt2, mistral], ids=["marian", "bart", "gpt2", "mistral"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModelPair:
    model, eos, pad = request.param()
    return ModelPair(model, tmp_path_factory.mktemp("pair"), eos, pad)


def test_outputs_are_diverse_and_only_some_end_with_eos(pair: ModelPair) -> None:
    """Otherwise the tests below would prove little."""
    outputs = pair.hf_outputs(num_beams=BEAMS, length_penalty=1.0)
    assert len(set(outputs)) > 40
    assert 20 < sum(tokens[-1] == pair.eos for tokens in outputs) < INPUTS - 20


def test_greedy_outputs_equal_transformers(pair: ModelPair) -> None:
    assert pair.our_outputs(lambda limits: Greedy(limits, pair.eos)) == pair.hf_outputs()


@pytest.mark.parametrize("power", PENALTIES)
def test_beam_search_with_their_eos_rule_equals_transformers(pair: ModelPair, power: float) -> None:
    outputs = pair.our_outputs(
        lambda limits: HuggingFaceBeamSearch(
            limits, pair.eos, BEAMS, length_penalty=LengthPenalty(kind="power", alpha=power)
        )
    )
    assert outputs == pair.hf_outputs(num_beams=BEAMS, length_penalty=power)


def test_beam_search_with_length_penalty_1_equals_transformers(pair: ModelPair) -> None:
    """With a length_penalty of 1, the difference in EOS does not change the best output of any of these inputs."""
    outputs = pair.our_outputs(
        lambda limits: BeamSearch(limits, pair.eos, BEAMS, length_penalty=LengthPenalty(kind="power", alpha=1.0))
    )
    assert outputs == pair.hf_outputs(num_beams=BEAMS, length_penalty=1.0)


@pytest.mark.parametrize("power", PENALTIES)
def test_beam_search_finds_no_worse_score_than_transformers(pair: ModelPair, power: float) -> None:
    theirs = iter(pair.hf_outputs(num_beams=BEAMS, length_penalty=power))
    for batch in pair.batches():
        ours = beam_search(
            pair.ours,
            *pair.state(batch),
            eos=pair.eos,
            max_length=LIMIT,
            beam_size=BEAMS,
            length_penalty=LengthPenalty(kind="power", alpha=power),
        )
        outputs = [next(theirs) for _ in batch]
        scores = score_forced(pair.ours, *pair.state(batch), outputs, eos=None)
        for (best, *_), logprobs in zip(ours, scores, strict=True):
            assert best.score >= sum(logprobs) / len(logprobs) ** power - 1e-5  # their sums are in float32
