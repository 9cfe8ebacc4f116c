"""A GPT-2 of transformers, brought over by `regard import`, writes by `regard generate` what it writes there.

Drawing needs the same chance on both sides: transformers draws by `torch.multinomial`, which is given our numbers here.
What it draws from is its own, after its own temperature and its own leaving out of what is too unlikely.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from regard.decode.single import uniform
from regard.task import load_generator
from regard.task.generator import SAMPLING
from tests.interop.huggingface.texts import ENGLISH, TURKISH
from tests.task.small import command

transformers = pytest.importorskip("transformers")
transformers.utils.logging.disable_progress_bar()

LENGTH, SEED = 24, 11
PROMPTS = ["The cat", ENGLISH[0], "Kedi çok", "x"]
DRAWN = {"temperature": 0.8, "top_k": 20, "top_p": 0.9}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The model as transformers saves it, and as the command brings it over."""
    from tokenizers import ByteLevelBPETokenizer

    place = tmp_path_factory.mktemp("gpt2")
    trained = ByteLevelBPETokenizer()
    texts = (ENGLISH + TURKISH) * 5
    trained.train_from_iterator(texts, vocab_size=400, special_tokens=["<|endoftext|>"], show_progress=False)
    (place / "theirs").mkdir()
    trained.save_model(str(place / "theirs"))
    torch.manual_seed(5)
    config = transformers.GPT2Config(
        vocab_size=400, n_embd=48, n_head=4, n_layer=3, n_positions=64, bos_token_id=0, eos_token_id=0
    )
    model = transformers.GPT2LMHeadModel(config)
    with torch.no_grad():
        for parameter in model.parameters():  # large enough that texts differ, and none repeats itself for ever
            parameter.add_(0.15 * torch.randn_like(parameter))
    model.save_pretrained(place / "theirs")
    done = command("import", place / "theirs", place / "ours")
    assert done.code == 0, done.err
    return place / "theirs", place / "ours"


class Theirs:
    def __init__(self, folder: Path) -> None:
        self.model = transformers.GPT2LMHeadModel.from_pretrained(folder).eval()
        self.tokenizer = transformers.GPT2Tokenizer.from_pretrained(folder)

    def generate(self, prompt: str, **options: Any) -> str:
        """The prompt and what follows it."""
        given = self.tokenizer(prompt, return_tensors="pt")
        found = self.model.generate(**given, max_new_tokens=LENGTH, pad_token_id=0, **options)
        return str(self.tokenizer.decode(found[0], skip_special_tokens=True, clean_up_tokenization_spaces=False))


@pytest.fixture(scope="module")
def theirs(folders: tuple[Path, Path]) -> Theirs:
    return Theirs(folders[0])


def written(folder: Path, prompt: str, *options: object) -> str:
    done = command("generate", folder, prompt, "--length", LENGTH, *options)
    assert done.code == 0, done.err
    return done.out.removesuffix("\n")


@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_text_is_theirs(prompt: str, folders: tuple[Path, Path], theirs: Theirs) -> None:
    text = theirs.generate(prompt, do_sample=False)
    assert len(text) > len(prompt)
    assert written(folders[1], prompt, "--beams", 1) == text


@pytest.mark.parametrize("prompt", PROMPTS)
def test_drawn_text_is_theirs_where_chance_is_the_same(
    prompt: str, folders: tuple[Path, Path], theirs: Theirs, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = 0

    def draw(shares: Tensor, num_samples: int) -> Tensor:
        """Ours lie the likeliest first, from 0 to 1, and a number between takes what lies there."""
        nonlocal steps
        number = uniform(torch.tensor([SEED]), torch.tensor([steps]))
        steps += 1
        ranked, tokens = shares.double().sort(dim=-1, descending=True)
        return tokens.gather(1, (ranked.cumsum(dim=-1) <= number[:, None]).sum(dim=-1, keepdim=True))

    monkeypatch.setattr(torch, "multinomial", draw)
    text = theirs.generate(prompt, do_sample=True, **DRAWN)
    options = [word for key, value in DRAWN.items() for word in (f"--{key.replace('_', '-')}", value)]
    assert steps > 0
    assert text != theirs.generate(prompt, do_sample=False)
    assert written(folders[1], prompt, "--seed", SEED, *options) == text


@pytest.mark.parametrize("prompt", PROMPTS)
def test_every_token_drawn_has_the_probability_it_has_there(
    prompt: str, folders: tuple[Path, Path], theirs: Theirs
) -> None:
    generator = load_generator(folders[1])
    ((found,),) = generator.generate_all([prompt], limit=LENGTH, decode=SAMPLING, alternatives=5)
    ids = theirs.tokenizer(prompt)["input_ids"]
    tokens = [*found.tokens, *([0] if found.ended else [])]
    with torch.no_grad():
        scores = theirs.model(torch.tensor([ids + tokens])).logits[0, len(ids) - 1 : -1].log_softmax(dim=-1)
    torch.testing.assert_close(torch.tensor(found.steps), scores.gather(1, torch.tensor(tokens)[:, None])[:, 0])
    for others, theirs_there in zip(found.alternatives, scores, strict=True):
        best = theirs_there.topk(5)
        assert [token for token, _ in others] == best.indices.tolist()
        torch.testing.assert_close(torch.tensor([gain for _, gain in others]), best.values)


def test_a_start_stands_before_a_prompt_only_where_their_tokenizer_puts_it(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    shutil.copytree(folders[0], tmp_path / "theirs")
    (tmp_path / "theirs" / "tokenizer_config.json").write_text(json.dumps({"add_bos_token": True}), encoding="utf-8")
    assert command("import", tmp_path / "theirs", tmp_path / "ours").code == 0
    without, always = load_generator(folders[1]), load_generator(tmp_path / "ours")
    ids = without.text.encode("The cat")
    assert (without.prompt(ids), always.prompt(ids)) == (ids, [0, *ids])
