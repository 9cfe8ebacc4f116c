"""Loss, teacher forcing, dropout, residual connections, norms, embeddings, and the numbers of table 3."""

import statistics
from functools import lru_cache

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy, layer_norm, normalize, one_hot

from regard.attention import Context, CrossAttention, LayerState, NoPositionConfig
from regard.model import (
    EmbeddingConfig,
    EncoderDecoder,
    FeedForwardConfig,
    LanguageModelConfig,
    NormConfig,
    count_parameters,
)
from regard.model.embedding import TokenEmbedding
from regard.model.presets import paper_model
from regard.model.stack import Block, PostNormBlock, PreNormBlock, Stack
from tests.model.small_models import norm_order
from tests.seeds.small import WIDTH, ids, random_ids, stack, translator, writer

# Loss: 004 eq. 13


def test_loss_of_a_sequence_is_the_mean_of_its_separate_steps() -> None:
    """004 eq. 13: T tokens hold T − 1 targets; predicting each from its own prefix gives the same mean."""
    model, tokens = writer(), random_ids(7)
    at_once = cross_entropy(model(tokens[:, :-1])[0], tokens[0, 1:])
    separate = [cross_entropy(model(tokens[:, :place])[:, -1], tokens[:, place]) for place in range(1, 7)]
    assert torch.allclose(at_once, torch.stack(separate).mean())


# Teacher forcing: 000 "DNN1 (Training)" and "DNN1 (Inference)"

SOURCE, TARGET = ids(3, 4, 5, 3, 6, 7), ids(0, 8, 9, 10, 7)  # The cat ate the mouse . → <START> Kedi fareyi yedi .
OTHER = 11


def with_other_prediction() -> tuple[EncoderDecoder, EncoderDecoder]:
    """A model, and a copy that always predicts the same word."""
    models = translator(output_bias=True), translator(output_bias=True)
    assert models[1].lm_head_bias is not None
    models[1].lm_head_bias.data[OTHER] = 1e6
    return models


def decoder_inputs(model: EncoderDecoder) -> list[Tensor]:
    """Records the input of the decoder at each call."""
    seen: list[Tensor] = []
    model.decoder.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0]))
    return seen


def decode_greedily(model: EncoderDecoder) -> list[int]:
    cache, word, written = model.start(SOURCE, capacity=4), TARGET[:, :1], []
    for _ in range(4):
        word = model.step(word, cache)[0].argmax(dim=-1)
        written.append(int(word))
    return written


def test_in_training_the_predicted_word_is_thrown_away() -> None:
    """000 "DNN1 (Training)": the prediction does not affect the decoder's input."""
    ours, other = with_other_prediction()
    read = [decoder_inputs(model) for model in (ours, other)]
    predictions = [model(SOURCE, TARGET).argmax(dim=-1) for model in (ours, other)]
    assert not torch.equal(*predictions)
    assert torch.equal(read[0][0], read[1][0])


def test_in_inference_the_predicted_word_is_read_next() -> None:
    """000 "DNN1 (Inference)": "each word produced is appended to input to predict next word"."""
    _, other = with_other_prediction()
    read = decoder_inputs(other)
    assert decode_greedily(other) == [OTHER] * 4
    later = torch.cat(read[1:], dim=1)  # (1, 3, width)
    expected = other.embedding(other.embed_tokens(ids(OTHER, OTHER, OTHER)), Context(ids(0, 0, 0), start=1))
    assert torch.allclose(later, expected)


def test_je_suis_etudiant_is_scored_at_once_as_in_five_steps() -> None:
    """001 "Decoding during Training & Testing": five steps give I, am, a, student, <end>; the counter shows six."""
    model, source, target = translator(), ids(1, 2, 3), ids(0, 4, 5, 6, 7)  # <start> I am a student
    cache = model.start(source, capacity=5)
    steps = [model.step(target[:, place : place + 1], cache)[0] for place in range(5)]
    assert torch.allclose(torch.cat(steps, dim=1), model(source, target))


def test_each_written_word_looks_at_all_three_words_read() -> None:
    """001 "Encoder-Decoder Attention": "generate keys and values with all three outputs from the Encoder"."""
    shapes = []

    def note(attention: nn.Module, weights: Tensor) -> None:
        if isinstance(attention, CrossAttention):
            shapes.append(tuple(weights.shape))

    translator(layers=1)(ids(1, 2, 3), ids(0, 4, 5, 6, 7), attention_hook=note)
    assert shapes == [(1, 4, 5, 3)]  # batch, heads, target words, source words


def test_padding_a_sentence_changes_nothing() -> None:
    """000 "Running example": "pad sentences (we will use xx) to extend all of them to length m", here to 8."""
    model, xx = translator(), 1
    padded = [torch.cat((words, torch.full((1, 8 - words.shape[1]), xx)), dim=1) for words in (SOURCE, TARGET)]
    lengths = {"source_lengths": torch.tensor([6]), "target_lengths": torch.tensor([5])}
    assert torch.allclose(model(*padded, **lengths)[:, :5], model(SOURCE, TARGET))


# Dropout: 002 "Dropout"

HIDDEN = 10
MASKS = (torch.arange(2**HIDDEN)[:, None] >> torch.arange(HIDDEN)) & 1  # every way to keep 10 units  # (1024, 10)


class FixedDropout(nn.Module):
    """`nn.Dropout` in training with given masks instead of sampled ones: keep, and scale by 1 / (1 − p)."""

    def __init__(self, masks: Tensor, p: float) -> None:
        super().__init__()
        self.masks, self.p = masks, p

    def forward(self, x: Tensor) -> Tensor:
        return x * self.masks / (1 - self.p)


def probabilities(p: float) -> Tensor:
    """The probability of each of the 1,024 masks.  # (1024, 1)"""
    kept = MASKS.sum(dim=-1, keepdim=True).double()
    return (1 - p) ** kept * p ** (HIDDEN - kept)


def feed_forward(dropout: float, width: int = 6) -> nn.Module:
    torch.manual_seed(0)
    return FeedForwardConfig(hidden=HIDDEN, dropout=dropout).build(width).double()


def run(part: nn.Module, x: Tensor) -> Tensor:
    return part(x, Context(torch.zeros(x.shape[:1], dtype=torch.long)[None]), LayerState())


@pytest.mark.parametrize("p", [0.2, 0.5])
def test_mean_of_a_linear_layer_over_all_1024_masks_is_its_output_in_evaluation(p: float) -> None:
    """002 "Dropout": "how to train 2ⁿ neural networks"; here the 2¹⁰ of a feed-forward with 10 hidden units."""
    part = feed_forward(p)
    x = torch.randn(1, 6).double()
    in_evaluation = run(part.eval(), x)
    part.dropout = FixedDropout(MASKS, p)
    over_all_masks = (probabilities(p) * run(part, x)).sum(dim=0)
    assert torch.allclose(over_all_masks, in_evaluation[0])


def test_mean_over_all_masks_is_not_the_output_in_evaluation_behind_a_nonlinearity() -> None:
    """002 "Dropout", figure 2, says they are the same; a ReLU behind the dropped units makes it an approximation."""
    part = feed_forward(0.0, width=HIDDEN).eval()
    x = torch.randn(1, HIDDEN).double()
    over_all_masks = (probabilities(0.5) * run(part, FixedDropout(MASKS, 0.5)(x))).sum(dim=0)
    assert (over_all_masks - run(part, x)[0]).abs().max() > 0.05


def test_p_is_the_chance_to_drop() -> None:
    """002 "Dropout": p is the probability of keeping in formulas, of dropping in code; nn.Dropout(0.2) drops 20 %."""
    torch.manual_seed(0)
    dropped = feed_forward(0.2).dropout(torch.ones(100_000))
    assert float((dropped == 0).float().mean()) == pytest.approx(0.2, abs=0.01)


def test_what_is_kept_is_scaled_in_training() -> None:
    """002 "Dropout": "scaled by a factor of 1/(1 − p) during training"."""
    torch.manual_seed(0)
    dropped = feed_forward(0.2).dropout(torch.ones(1000))
    assert torch.allclose(dropped[dropped != 0], torch.tensor(1.25))


# Residual connections: 002 "Residual Connections", 004 "vanishing gradients"


def run_by_layer(order: str, layers: int, seed: int) -> tuple[Tensor, list[Tensor]]:
    """A stack's output for two random sentences of 10 words, and the input of each layer."""
    torch.manual_seed(seed)
    model = Stack(stack(layers, width=32, **norm_order(order)), 32, NoPositionConfig(), causal=False)
    x = torch.randn(2, 10, 32, requires_grad=True)
    context, inputs = Context(torch.zeros(2, 10, dtype=torch.long)), []
    for block, state in zip(model.layers, model.states(), strict=True):
        x.retain_grad()
        inputs.append(x)
        x = block(x, context, state)
    return model.final_norm(x), inputs


def gradient_of_first_over_last(order: str, layers: int, seed: int) -> float:
    output, inputs = run_by_layer(order, layers, seed)
    (output * torch.randn_like(output)).sum().backward()
    first, last = (float(x.grad.norm()) for x in (inputs[0], inputs[-1]) if x.grad is not None)
    return first / last


@pytest.mark.parametrize("layers", [6, 24, 96])
def test_with_residuals_the_gradient_is_as_large_in_the_first_layer_as_in_the_last(layers: int) -> None:
    """002 "Residual Connections", 004 "skip connections": within a factor of 1.5 at any depth."""
    ratios = [gradient_of_first_over_last("pre", layers, seed) for seed in range(3)]
    assert all(1 / 1.5 < ratio < 1.5 for ratio in ratios)


def test_the_output_is_the_input_and_what_every_part_wrote() -> None:
    """004: each part is "reading from" and "writing to" a residual stream."""
    torch.manual_seed(0)
    model = Stack(stack(layers=3), WIDTH, NoPositionConfig(), causal=False).double()
    model.final_norm = nn.Identity()
    written: list[Tensor] = []
    for block in model.blocks():
        for sublayer in block.sublayers:
            sublayer.function.register_forward_hook(lambda *call: written.append(call[-1]))
    x = torch.randn(1, 5, WIDTH).double()
    output = model(x, Context(torch.zeros(1, 5, dtype=torch.long)), model.states())
    assert len(written) == 6
    assert torch.allclose(output, x + sum(written))


def test_without_residuals_the_gradient_vanishes_over_96_layers() -> None:
    """004 "Deep neural architectures struggle with vanishing gradients": the median of 12 seeds is below 1/20."""
    ratios = [gradient_of_first_over_last("none", 96, seed) for seed in range(12)]
    assert statistics.median(ratios) < 0.05


def test_without_residuals_the_gradient_does_not_vanish_over_6_layers() -> None:
    """004 is about deep networks, and 6 layers with pre-norm are not deep."""
    ratios = [gradient_of_first_over_last("none", 6, seed) for seed in range(12)]
    assert statistics.median(ratios) > 1


def word_similarity(order: str) -> float:
    """The mean cosine between two words of a sentence after 6 layers."""
    output, _ = run_by_layer(order, 6, seed=0)
    words = normalize(output.detach(), dim=-1)
    cosines = words @ words.mT  # (2, 10, 10)
    return float((cosines.sum() - 20) / 180)


def test_without_residuals_all_words_become_one_vector() -> None:
    """002 "Residual Connections": without them, word identity is lost before the gradients vanish."""
    assert word_similarity("none") > 0.99


def test_with_residuals_words_stay_apart() -> None:
    """002 "Residual Connections"."""
    assert word_similarity("pre") < 0.2


# Add & Norm: 002 "Add & Norm" and "LayerNorm"


class Doubled(nn.Module):
    """The simplest sublayer for a residual connection and a norm."""

    def forward(self, x: Tensor, context: Context, state: LayerState) -> Tensor:
        return 2 * x


def around(kind: type[Block]) -> Block:
    return kind({"doubled": Doubled()}, NormConfig(), 8, 0.0)


def test_pre_norm_adds_the_part_of_the_normed_input() -> None:
    """002 "Add & Norm": z' = f(LN(z)) + z."""
    z = torch.randn(3, 8)
    assert torch.allclose(run(around(PreNormBlock), z), 2 * layer_norm(z, [8]) + z)


def test_post_norm_norms_the_sum() -> None:
    """002 "Add & Norm": z' = LN(f(z) + z)."""
    z = torch.randn(3, 8)
    assert torch.allclose(run(around(PostNormBlock), z), layer_norm(2 * z + z, [8]))


def learn_to_copy(order: str, rate: float, steps: int, seed: int, *, even_start: bool = False) -> float:
    """The final loss of 6 layers trained to repeat 6 digits; guessing gives 2.30.

    Pre-norm stacks are initialized with smaller output projections; `even_start` initializes them like post-norm.
    """
    torch.manual_seed(seed)
    config = LanguageModelConfig(
        vocab_size=11, width=32, decoder=stack(6, width=32, **norm_order(order)), embedding=EmbeddingConfig(dropout=0.0)
    )
    model = config.build()
    if even_start:
        for name, weight in model.decoder.named_parameters():
            if name.endswith((".o_proj.weight", ".down_proj.weight")):
                weight.data *= (2 * 6) ** 0.5
    draw = torch.Generator().manual_seed(100 + seed)
    optimizer = torch.optim.Adam(model.parameters(), rate, betas=(0.9, 0.98))
    losses = []
    for _ in range(steps):
        digits = torch.randint(10, (16, 6), generator=draw)
        tokens = torch.cat((digits, torch.full((16, 1), 10), digits), dim=1)  # (16, 13)
        loss = cross_entropy(model(tokens[:, :-1])[:, 6:].flatten(0, 1), tokens[:, 7:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return statistics.mean(losses[-10:])


@lru_cache
def copied(order: str, rate: float, steps: int, *, even_start: bool = False) -> list[float]:
    """The losses of three seeds."""
    return [learn_to_copy(order, rate, steps, seed, even_start=even_start) for seed in range(3)]


def test_at_a_high_rate_pre_norm_learns() -> None:
    """002 "Add & Norm": "pre-norm leads to faster training". At 0.01 without warm-up every seed learns to copy."""
    assert max(copied("pre", 0.01, 150)) < 1


def test_at_a_high_rate_post_norm_stays_near_chance() -> None:
    """002 "Add & Norm": at the same rate no seed learns to copy in the paper's order."""
    assert min(copied("post", 0.01, 150)) > 2


def test_at_a_low_rate_post_norm_is_ahead_of_ours() -> None:
    """002 "Add & Norm" does not hold here: at 0.001 post-norm has the lower loss in every seed after 100 steps."""
    assert max(copied("post", 0.001, 100)) < min(copied("pre", 0.001, 100))


def test_at_a_low_rate_pre_and_post_norm_are_alike_from_an_even_start() -> None:
    """002 "Add & Norm": that lead comes from the smaller initial weights of pre-norm, not from the order."""
    pre, post = copied("pre", 0.001, 100, even_start=True), copied("post", 0.001, 100)
    assert statistics.mean(pre) == pytest.approx(statistics.mean(post), abs=0.15)


def norm_of_002(x: Tensor, epsilon: float) -> Tensor:
    """(x − μ) / (σ + ε), the slide's LayerNorm."""
    return (x - x.mean()) / (x.std(correction=0) + epsilon)


@pytest.mark.parametrize(("spread", "slide_over_ours"), [(1.0, 1.0), (1e-3, 3.28)])
def test_layer_norm_of_the_slide_is_another_where_values_are_close(spread: float, slide_over_ours: float) -> None:
    """002 "LayerNorm": σ + ε against PyTorch's √(σ² + ε). Alike at σ = 1, 3.28 times as large at σ = 0.001."""
    x = spread * torch.tensor([-1.0, 1.0, -1.0, 1.0], dtype=torch.float64)
    ours = NormConfig(eps=1e-5).build(4).double()(x).detach()
    assert float(norm_of_002(x, 1e-5)[1] / ours[1]) == pytest.approx(slide_over_ours, abs=5e-3)


def test_gain_and_bias_of_a_norm_are_learned() -> None:
    """002 "LayerNorm" calls g and b hyperparameters."""
    norm = NormConfig().build(4)
    (norm(torch.randn(3, 4)) * torch.randn(3, 4)).sum().backward()
    assert all(parameter.grad is not None and (parameter.grad != 0).all() for parameter in norm.parameters())


# Feed-forward: 002 "Self Attention Encoder using a Feed-forward Network", 004 eq. 12


def test_feed_forward_is_equation_12() -> None:
    """004 eq. 12: relu(x W₁ + b₁) W₂ + b₂."""
    torch.manual_seed(0)
    part, x = FeedForwardConfig(hidden=32).build(8), torch.randn(3, 8)
    expected = (x @ part.up_proj.weight.T + part.up_proj.bias).relu() @ part.down_proj.weight.T + part.down_proj.bias
    assert torch.allclose(run(part, x), expected, atol=1e-6)


def test_feed_forward_widens_by_a_factor_of_4() -> None:
    """004 eq. 12: "the original paper uses a factor of 4"."""
    config = paper_model(37_000)
    assert config.encoder.feed_forward.hidden == 4 * config.width


# Embeddings: 003 "Limitation of one-hot encoding" and "What is embedding?"

CAT, MAT, ON = 0, 1, 2
EMBEDDING = torch.tensor([[1.2, -0.1, 4.3, 3.2], [0.4, 2.5, -0.9, 0.5], [2.1, 0.3, 0.1, 0.4]])


def test_one_hot_times_the_embedding_is_the_look_up() -> None:
    """003 "What is embedding?": "a fancy lookup table", with the slide's three words of 4 dimensions."""
    vocabulary = TokenEmbedding(3, 4)
    vocabulary.weight.data = EMBEDDING
    words = ids(CAT, ON, MAT, CAT)
    assert torch.equal(vocabulary(words), one_hot(words, 3).float() @ EMBEDDING)


def test_distinct_one_hot_words_have_dot_product_0() -> None:
    """003 "Limitation of one-hot encoding": "categories that are similar are not closer to each other"."""
    words = one_hot(torch.arange(5))  # cat, mat, on, sat, the
    assert torch.equal(words @ words.T, torch.eye(5).long())


def test_embedded_words_have_a_dot_product_that_tells_them_apart() -> None:
    """003 "Limitation of one-hot encoding": with the slide's numbers cat·mat = −2.04 and cat·on = 4.2."""
    cat, mat, on = EMBEDDING
    assert [float(cat @ mat), float(cat @ on)] == pytest.approx([-2.04, 4.2], abs=1e-5)


def test_a_word_is_scored_by_the_dot_product_with_its_vector() -> None:
    """000 "Vector-Space Embeddings": a softmax over a vector's dot products with all word vectors."""
    vocabulary = TokenEmbedding(3, 4)
    vocabulary.weight.data = EMBEDDING
    expected = torch.tensor([float(EMBEDDING[CAT] @ word) for word in EMBEDDING])
    assert torch.allclose(vocabulary.logits(EMBEDDING[CAT]), expected)


# Banks: 000 "Why contextual embeddings", 003 "Ambiguity", 004's first question

LOCAL = ["I", "bank", "only", "at", "my", "local", "bank"]
RIVER = ["We", "went", "to", "the", "river", "bank"]
DEPOSIT = ["I", "need", "to", "go", "to", "bank", "to", "make", "a", "deposit"]
PICNIC = ["I", "had", "a", "picnic", "by", "the", "river", "bank", "yesterday"]
ROBBERY = ["I", "am", "NOT", "going", "to", "rob", "a", "bank", "tomorrow"]
WORDS = sorted({*LOCAL, *RIVER, *DEPOSIT, *PICNIC, *ROBBERY})


def read(sentence: list[str]) -> Tensor:
    return ids(*(WORDS.index(word) for word in sentence))


def banks(vectors: Tensor, sentence: list[str]) -> list[Tensor]:
    """The vectors of "bank" in a sentence.  vectors: # (1, words, width)"""
    return [vectors[0, place] for place, word in enumerate(sentence) if word == "bank"]


def test_a_static_vector_of_bank_is_one_and_the_same() -> None:
    """000 "Why contextual embeddings": static embeddings "do not depend on task", nor on the sentence."""
    vocabulary = translator().embed_tokens
    bank_vectors = [
        bank for sentence in (LOCAL, RIVER, DEPOSIT) for bank in banks(vocabulary(read(sentence)), sentence)
    ]
    assert len(bank_vectors) == 4
    assert all(torch.equal(bank, bank_vectors[0]) for bank in bank_vectors)


@pytest.mark.parametrize(("one", "other"), [(RIVER, DEPOSIT), (PICNIC, ROBBERY)], ids=["003", "004"])
def test_contextual_vectors_of_bank_differ_between_sentences(one: list[str], other: list[str]) -> None:
    """003 "Ambiguity", 004's first question: even in an encoder that was never trained and knows no positions."""
    model = translator(position=NoPositionConfig())
    (first,), (second,) = (banks(model.encode(read(sentence)), sentence) for sentence in (one, other))
    assert cosine_similarity(first, second, dim=0) < 0.99


def test_contextual_vectors_of_bank_differ_within_a_sentence() -> None:
    """000 "Why contextual embeddings": "I bank only at my local bank"."""
    first, second = banks(translator().encode(read(LOCAL)), LOCAL)
    assert cosine_similarity(first, second, dim=0) < 0.99


def test_without_positions_two_banks_of_one_sentence_stay_the_same() -> None:
    """000 "Why contextual embeddings": attention alone cannot distinguish them; both see the same set of words."""
    first, second = banks(translator(position=NoPositionConfig()).encode(read(LOCAL)), LOCAL)
    assert torch.allclose(first, second)


# Table 3: 002 "Variations on the Transformer architecture"


def millions(vocabulary: int, **changes: int) -> float:
    with torch.device("meta"):  # on the meta device: shapes only
        return count_parameters(paper_model(vocabulary, **changes).build()) / 1e6


@pytest.mark.parametrize(("vocabulary", "expected"), [(37_000, 63.0), (41_000, 65.1)])
def test_base_model_has_63_million_parameters_at_37000_words_and_65_at_41000(vocabulary: int, expected: float) -> None:
    """002 table 3 prints 65 million; the paper speaks of 37,000 words."""
    assert millions(vocabulary) == pytest.approx(expected, abs=0.05)


ROWS_C = [
    (36, {"layers": 2}, {"heads": 2}),
    (50, {"layers": 4}, {"heads": 4}),
    (80, {"layers": 8}, {"heads": 8}),
    (28, {"width": 256, "head_dim": 32}, {"hidden": 256, "head_dim": 32}),
    (168, {"width": 1024, "head_dim": 128}, {"hidden": 1024, "head_dim": 128}),
]
"""Rows (C) of table 3: millions of parameters, what the paper changes, and in which column the scanned slide has it."""


@pytest.mark.parametrize(("printed", "meant"), [(printed, meant) for printed, meant, _ in ROWS_C])
def test_rows_c_of_table_3_are_layers_and_width(printed: int, meant: dict[str, int]) -> None:
    """002 table 3, rows (C): in the paper's columns our counts are within 1 % of the printed ones."""
    assert millions(41_000, **meant) == pytest.approx(printed, rel=0.01)


@pytest.mark.parametrize(("printed", "scanned"), [(printed, scanned) for printed, _, scanned in ROWS_C])
def test_rows_c_of_table_3_are_not_heads_and_hidden_as_scanned(printed: int, scanned: dict[str, int]) -> None:
    """002 table 3, rows (C): read in the columns of the scanned slide the counts are 10 % off, or more."""
    assert millions(41_000, **scanned) != pytest.approx(printed, rel=0.1)
