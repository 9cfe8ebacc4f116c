"""A GPT-2 imported by `regard import` generates the same text with `regard generate` as in transformers.

Sampling needs the same random numbers on both sides: `torch.multinomial`, by which transformers samples, is replaced
by a function that uses ours. The distribution is that of transformers, after its own temperature, top-k and top-p.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from regard.decode.sampling import uniform
from regard.task.language_modeling.pipeline import SAMPLING, TextGenerator
from tests.interop.huggingface.texts import ENGLISH, TURKISH
from tests.task.small import command

transformers = pytest.importorskip("transformers")
transformers.utils.logging.disable_progress_bar()

LENGTH, SEED = 24, 11
PROMPTS = ["The cat", ENGLISH[0], "Kedi çok", "x"]
SAMPLED = {"temperature": 0.8, "top_k": 20, "top_p": 0.9}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The model as saved by transformers, and as imported by the command."""
    from tokenizers import ByteLevelBPETokenizer

    directory = tmp_path_factory.mktemp("gpt2")
    trained = ByteLevelBPETokenizer()
    texts = (ENGLISH + TURKISH) * 5
    trained.train_from_iterator(texts, vocab_size=400, special_tokens=["<|endoftext|>"], show_progress=False)
    (directory / "theirs").mkdir()
    trained.save_model(str(directory / "theirs"))
    torch.manual_seed(5)
    config = transformers.GPT2Config(
        vocab_size=400, n_embd=48, n_head=4, n_layer=3, n_positions=64, bos_token_id=0, eos_token_id=0
    )
    model = transformers.GPT2LMHeadModel(config)
    with torch.no_grad():
        for parameter in model.parameters():  # large enough for diverse texts without loops
            parameter.add_(0.15 * torch.randn_like(parameter))
    model.save_pretrained(directory / "theirs")
    result = command("import", directory / "theirs", directory / "ours")
    assert result.code == 0, result.err
    return directory / "theirs", directory / "ours"


class HuggingFaceGenerator:
    def __init__(self, folder: Path) -> None:
        self.model = transformers.GPT2LMHeadModel.from_pretrained(folder).eval()
        self.tokenizer = transformers.GPT2Tokenizer.from_pretrained(folder)

    def generate(self, prompt: str, **options: Any) -> str:
        """The prompt and its continuation."""
        batch = self.tokenizer(prompt, return_tensors="pt")
        output = self.model.generate(**batch, max_new_tokens=LENGTH, pad_token_id=0, **options)
        return str(self.tokenizer.decode(output[0], skip_special_tokens=True, clean_up_tokenization_spaces=False))


@pytest.fixture(scope="module")
def theirs(folders: tuple[Path, Path]) -> HuggingFaceGenerator:
    return HuggingFaceGenerator(folders[0])


def generate(folder: Path, prompt: str, *options: object) -> str:
    result = command("generate", folder, prompt, "--max-new-tokens", LENGTH, *options)
    assert result.code == 0, result.err
    return result.out.removesuffix("\n")


@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_text_equals_transformers(prompt: str, folders: tuple[Path, Path], theirs: HuggingFaceGenerator) -> None:
    text = theirs.generate(prompt, do_sample=False)
    assert len(text) > len(prompt)
    assert generate(folders[1], prompt, "--beam-size", 1) == text


@pytest.mark.parametrize("prompt", PROMPTS)
def test_sampled_text_equals_transformers_with_the_same_random_numbers(
    prompt: str, folders: tuple[Path, Path], theirs: HuggingFaceGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = 0

    def sample(probabilities: Tensor, num_samples: int) -> Tensor:
        """Inverse transform sampling over tokens in order of descending probability, as in our sampler."""
        nonlocal steps
        number = uniform(torch.tensor([SEED]), torch.tensor([steps]))
        steps += 1
        ranked, tokens = probabilities.double().sort(dim=-1, descending=True)
        return tokens.gather(1, (ranked.cumsum(dim=-1) <= number[:, None]).sum(dim=-1, keepdim=True))

    monkeypatch.setattr(torch, "multinomial", sample)
    text = theirs.generate(prompt, do_sample=True, **SAMPLED)
    options = [argument for key, value in SAMPLED.items() for argument in (f"--{key.replace('_', '-')}", value)]
    assert steps > 0
    assert text != theirs.generate(prompt, do_sample=False)
    assert generate(folders[1], prompt, "--seed", SEED, *options) == text


@pytest.mark.parametrize("prompt", PROMPTS)
def test_logprobs_of_sampled_tokens_equal_transformers(
    prompt: str, folders: tuple[Path, Path], theirs: HuggingFaceGenerator
) -> None:
    generator = TextGenerator.load(folders[1])
    ((output,),) = generator.generate_batch([prompt], max_new_tokens=LENGTH, decode=SAMPLING, alternatives=5)
    ids = theirs.tokenizer(prompt)["input_ids"]
    tokens = [*output.tokens, *([0] if output.ended else [])]
    with torch.no_grad():
        logprobs = theirs.model(torch.tensor([ids + tokens])).logits[0, len(ids) - 1 : -1].log_softmax(dim=-1)
    torch.testing.assert_close(
        torch.tensor(output.token_logprobs), logprobs.gather(1, torch.tensor(tokens)[:, None])[:, 0]
    )
    for alternatives, row in zip(output.alternatives, logprobs, strict=True):
        best = row.topk(5)
        assert [token for token, _ in alternatives] == best.indices.tolist()
        torch.testing.assert_close(torch.tensor([logprob for _, logprob in alternatives]), best.values)


def test_prompt_has_a_bos_token_only_if_their_tokenizer_adds_one(folders: tuple[Path, Path], tmp_path: Path) -> None:
    shutil.copytree(folders[0], tmp_path / "theirs")
    (tmp_path / "theirs" / "tokenizer_config.json").write_text(json.dumps({"add_bos_token": True}), encoding="utf-8")
    assert command("import", tmp_path / "theirs", tmp_path / "ours").code == 0
    without_bos, with_bos = TextGenerator.load(folders[1]), TextGenerator.load(tmp_path / "ours")
    ids = without_bos.tokenizer.encode("The cat")
    assert (without_bos.prompt_ids(ids), with_bos.prompt_ids(ids)) == (ids, [0, *ids])
