"""Fine-tuning on expected GLEU: the reward, the samples and the gradient against formulas written out."""

from types import SimpleNamespace

import pytest
import torch

from regard import UserError
from regard.score.gleu import sentence_gleu
from regard.train.expected_gleu import ExpectedGleuConfig, expected_gleu_loss, output_lengths, sample_outputs
from regard.train.loss import Loss
from tests.model.before.samples import build, sample

EOS = 2


@pytest.mark.parametrize(
    ("output", "reference", "expected"),
    [
        ("a b c d", "a b c d", 1.0),
        ("a b", "c d", 0.0),
        ("a b c", "a b d", 3 / 6),  # a, b, a b of 3 + 2 + 1 n-grams
        ("a b", "a b c", 3 / 6),  # all of 3, but the reference has 6
        ("a a a", "a", 1 / 6),  # each n-gram counts as often as in both
    ],
)
def test_gleu_is_the_minimum_of_precision_and_recall(output, reference, expected):
    assert sentence_gleu(output.split(), reference.split()) == pytest.approx(expected)
    assert sentence_gleu(reference.split(), output.split()) == pytest.approx(expected)


def batch():
    return SimpleNamespace(
        source=torch.tensor([[3, 4, 5, 2], [6, 2, 0, 0]]),
        source_lengths=torch.tensor([4, 2]),
        target=torch.tensor([[4, 5, 2], [7, 2, 0]]),
        target_lengths=torch.tensor([3, 2]),
    )


def test_samples_have_the_probabilities_of_the_model():
    model = build(sample("recurrent-attention", width=8, hidden=12))
    torch.manual_seed(0)
    outputs = sample_outputs(model, batch().source, batch().source_lengths, 4000, 1)  # (rows · samples, 1)
    expected = model(batch().source, torch.ones(2, 1, dtype=torch.long), source_lengths=batch().source_lengths)
    for row in range(2):
        found = torch.bincount(outputs[row * 4000 : (row + 1) * 4000, 0], minlength=13) / 4000
        assert (found - expected[row, 0].softmax(-1)).abs().max() < 0.03


def test_length_counts_the_first_eos():
    assert output_lengths(torch.tensor([[5, 2, 2], [5, 6, 7], [2, 2, 2]]), EOS).tolist() == [2, 3, 1]


def test_gradient_is_that_of_the_formula():
    model = build(sample("recurrent-attention", width=8, hidden=12))
    config = ExpectedGleuConfig(samples=3, ml_weight=0.5)
    given = batch()
    nll = model.embed_tokens.weight.square().sum()
    cross_entropy = Loss(nll, nll, torch.tensor(5))

    def forward(source, inputs, lengths):
        return model(source, inputs, source_lengths=lengths)

    torch.manual_seed(1)
    loss = expected_gleu_loss(model, forward, given, cross_entropy, config)
    torch.manual_seed(1)
    outputs = sample_outputs(model, given.source, given.source_lengths, 3, int(1.5 * 3) + 1)
    expected = 0.5 * nll
    for row in range(2):
        kept = [each[: int(output_lengths(each[None], EOS))].tolist() for each in outputs[3 * row : 3 * row + 3]]
        reference = given.target[row, : given.target_lengths[row]].tolist()
        rewards = [sentence_gleu(each, reference) for each in kept]
        for each, reward in zip(kept, rewards, strict=True):
            source = given.source[row : row + 1, : given.source_lengths[row]]
            logprobs = model(source, torch.tensor([[1, *each[:-1]]]))[0].log_softmax(-1)
            total = sum(logprobs[step, token] for step, token in enumerate(each))
            expected = expected - (reward - sum(rewards) / 3) * total / 3
    assert loss.total.item() == pytest.approx(expected.item(), abs=1e-4)  # log-probabilities in float32
    assert len(set(rewards)) > 1, "samples with equal rewards test nothing"


def test_language_model_has_no_source_to_sample_for():
    import regard

    with pytest.raises(UserError, match=r"train\.expected_gleu: it compares outputs for a source"):
        regard.read_recipe("quick-lm", ["train.expected_gleu={}"])
