"""What transformers generates from a model of theirs, our search finds in the same model brought over.

Lengths. In its beam search transformers divides the sum of log-probabilities by length^length_penalty, where the length
is that of what was generated, the end included and the prompt (a translator's start token, a writer's whole text so
far) not (`_update_finished_beams`: cur_len + 1 - decoder_prompt_len). That is `PowerPenalty(length_penalty)`, at any
value. With early_stopping="never" it stops when nothing alive could win at the greatest length, as we do.

Ends. One difference no length_penalty can take away: of the best 2 · beams candidates of a step, transformers lets
only those end that are among the first `beams` (`top_num_beam_mask`), we all of them. `LikeTheirs` ends as they do, for
outputs equal token for token; our own beams must then find nothing worse than theirs.

They are asked for no end forced at the limit, which configs of Marian and BART would otherwise have.
"""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from regard.decode import Beams, PowerPenalty, Single, beam_search, score_given, search
from regard.decode.beam import Texts
from regard.interop import import_huggingface
from regard.run import load

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


class LikeTheirs(Beams):
    """Beams of which only a candidate among the `width` best may end."""

    def candidates(self, logits: Tensor) -> tuple[Texts, Tensor, Tensor, Tensor]:
        pool, places, tokens, merits = super().candidates(logits)
        late = (torch.arange(tokens.shape[1]) >= self.width) & (tokens == self.end)
        return pool._replace(totals=pool.totals.masked_fill(late, float("-inf"))), places, tokens, merits


class Pair:
    """A model of theirs with random weights and the same one brought over, both in float64, and what they are asked."""

    def __init__(self, theirs: Any, folder: Path, end: int, padding: int) -> None:
        theirs.save_pretrained(folder / "theirs")
        import_huggingface(folder / "theirs", folder / "ours")
        self.ours = load(folder / "ours").model.double().eval()
        self.theirs, self.end, self.padding = theirs.double().eval(), end, padding
        self.translates = theirs.config.is_encoder_decoder
        start = theirs.config.decoder_start_token_id if self.translates else None
        self.theirs.generation_config = transformers.GenerationConfig(
            eos_token_id=end, pad_token_id=padding, decoder_start_token_id=start
        )
        random = torch.Generator().manual_seed(5)
        words = torch.tensor([word for word in range(theirs.config.vocab_size) if word not in (end, padding, start)])
        lengths = torch.randint(1, 13, (INPUTS,), generator=random).tolist()
        self.inputs = [words[torch.randint(len(words), (length,), generator=random)] for length in lengths]

    def batches(self) -> list[list[Tensor]]:
        return [self.inputs[at : at + BATCH] for at in range(0, INPUTS, BATCH)]

    @cache  # noqa: B019 (there are four pairs, and each is asked the same more than once)
    def they_find(self, **options: Any) -> list[tuple[int, ...]]:
        """Tokens with their end, where they came to it."""
        found = []
        for batch in self.batches():
            side = "right" if self.translates else "left"
            ids = torch.nn.utils.rnn.pad_sequence(batch, True, self.padding, padding_side=side)
            seen = torch.nn.utils.rnn.pad_sequence([torch.ones_like(one) for one in batch], True, 0, padding_side=side)
            out = self.theirs.generate(
                ids, attention_mask=seen, max_new_tokens=LIMIT, do_sample=False, early_stopping="never", **options
            )
            rows = out[:, 1 if self.translates else ids.shape[1] :].tolist()
            found += [tuple(row[: row.index(self.end) + 1] if self.end in row else row) for row in rows]
        return found

    def state(self, batch: list[Tensor]) -> tuple[Any, Tensor]:
        """Our state for some inputs, and the token each goes on from."""
        lengths = torch.tensor([len(one) for one in batch])
        padded = torch.nn.utils.rnn.pad_sequence(batch, batch_first=True, padding_value=self.padding)
        if self.translates:
            start = self.theirs.config.decoder_start_token_id
            return self.ours.start(padded, LIMIT, lengths), torch.full((len(batch),), start)
        state = self.ours.start(len(batch), padded.shape[1] + LIMIT)
        if padded.shape[1] > 1:
            _, state = self.ours.step(padded[:, :-1], state, lengths - 1)
        return state, padded.gather(1, lengths[:, None] - 1)[:, 0]

    def we_find(self, make: Any) -> list[tuple[int, ...]]:
        found = []
        for batch in self.batches():
            outputs = search(self.ours, *self.state(batch), make([LIMIT] * len(batch)))
            found += [(*best.tokens, *([self.end] if best.ended else [])) for best, *_ in outputs]
        return found


def shaken(model: Any, end: int, bias: float, seed: int = 3) -> Any:
    """Random weights, large enough that outputs differ, and an end likely enough that many come to it."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if "embed_positions" not in name or not isinstance(model, transformers.MarianMTModel):
                gain = ("norm" in name or "ln_" in name) and name.endswith("weight")
                noise = torch.randn(tensor.shape, generator=generator)
                size = 0.1 if tensor.dim() == 1 else 1.0 if "encoder_attn" in name else 0.5
                tensor.copy_(1 + 0.2 * noise if gain else size * noise)
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias[0, end] = bias
    return model


def marian() -> tuple[Any, int, int]:
    return shaken(transformers.MarianMTModel(transformers.MarianConfig(**MARIAN)), 0, 3.0, seed=1), 0, 36


def bart() -> tuple[Any, int, int]:
    return shaken(transformers.BartForConditionalGeneration(transformers.BartConfig(**BART)), 3, 5.0), 3, 1


def gpt2() -> tuple[Any, int, int]:
    return shaken(transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT2)), 14, 0.0), 14, 42


def mistral() -> tuple[Any, int, int]:
    """Its window is shorter than most texts that are continued."""
    return shaken(transformers.MistralForCausalLM(transformers.MistralConfig(**MISTRAL)), 18, 0.0), 18, 42


@pytest.fixture(scope="module", params=[marian, bart, gpt2, mistral], ids=["marian", "bart", "gpt2", "mistral"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    model, end, padding = request.param()
    return Pair(model, tmp_path_factory.mktemp("pair"), end, padding)


def test_outputs_are_unlike_and_some_end_and_some_are_cut(pair: Pair) -> None:
    """Else the tests below would prove little."""
    found = pair.they_find(num_beams=BEAMS, length_penalty=1.0)
    assert len(set(found)) > 40
    assert 20 < sum(tokens[-1] == pair.end for tokens in found) < INPUTS - 20


def test_greedy_outputs_are_theirs_token_for_token(pair: Pair) -> None:
    assert pair.we_find(lambda limits: Single(limits, pair.end)) == pair.they_find()


@pytest.mark.parametrize("power", PENALTIES)
def test_beams_are_theirs_token_for_token(pair: Pair, power: float) -> None:
    found = pair.we_find(lambda limits: LikeTheirs(limits, pair.end, BEAMS, penalty=PowerPenalty(power)))
    assert found == pair.they_find(num_beams=BEAMS, length_penalty=power)


def test_our_own_beams_are_theirs_where_the_mean_of_a_token_counts(pair: Pair) -> None:
    """With a length_penalty of 1 an end that comes late among the candidates does not win on any of these inputs."""
    found = pair.we_find(lambda limits: Beams(limits, pair.end, BEAMS, penalty=PowerPenalty(1.0)))
    assert found == pair.they_find(num_beams=BEAMS, length_penalty=1.0)


@pytest.mark.parametrize("power", PENALTIES)
def test_our_own_beams_find_nothing_worse_than_theirs(pair: Pair, power: float) -> None:
    theirs = iter(pair.they_find(num_beams=BEAMS, length_penalty=power))
    for batch in pair.batches():
        ours = beam_search(
            pair.ours, *pair.state(batch), end=pair.end, limit=LIMIT, beams=BEAMS, penalty=PowerPenalty(power)
        )
        given = [next(theirs) for _ in batch]
        scores = score_given(pair.ours, *pair.state(batch), given, end=None)
        for (best, *_), gains in zip(ours, scores, strict=True):
            assert best.score >= sum(gains) / len(gains) ** power - 1e-5  # they add up in float32
