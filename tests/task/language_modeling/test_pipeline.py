"""Text generation: the same continuations streamed or not, in batches or alone."""

import dataclasses
from pathlib import Path

import pytest
import torch

import regard
from regard import UserError
from regard.attention import MultiHeadConfig
from regard.data.tokenizers.tokenizer import TextTokenizer
from regard.data.tokenizers.training import Kind, TokenizerConfig, train_tokenizer
from regard.decode import DecodeConfig
from regard.model import FeedForwardConfig, LanguageModelConfig, StackConfig
from regard.model.embedding import SpecialTokensConfig
from regard.run import load_model, save_model
from regard.task.constraints import make_constraints
from regard.task.language_modeling.pipeline import SAMPLING, GeneratedText, TextGenerator
from regard.task.translation.pipeline import Translator
from tests.task.small import save_random_model, sentences

GREEDY = DecodeConfig(beam_size=1)
BEAMS = DecodeConfig(beam_size=3)
SAMPLED = DecodeConfig(beam_size=1, sample=True, temperature=1.5)
PROMPTS = ["red", "the old cat and the sea", "", "big dog"]


def save_random_writer(folder: Path, *, end: bool = True, start: bool = True, kind: Kind = "character") -> Path:
    """A run folder with a small untrained language model, with weights so large that its texts differ."""
    tokenizer = train_tokenizer(TokenizerConfig(kind=kind), sentences(20))
    assert tokenizer.bos is not None
    assert tokenizer.eos is not None
    torch.manual_seed(3)
    config = LanguageModelConfig(
        vocab_size=tokenizer.vocab_size,
        width=16,
        decoder=StackConfig(
            layers=2, attention=MultiHeadConfig(heads=2), feed_forward=FeedForwardConfig(hidden=32), dropout=0.0
        ),
        special_tokens=SpecialTokensConfig(
            pad=tokenizer.pad,
            bos=tokenizer.bos if start else None,
            eos=tokenizer.eos if end else None,
        ),
        tie_weights=False,
        output_bias=True,
    )
    model = config.build().eval()
    with torch.no_grad():
        model.embed_tokens.weight.mul_(2.5)
        assert model.lm_head_bias is not None
        for text in sentences(20):
            model.lm_head_bias[tokenizer.encode(text)] = 6.0  # letters, rather than invalid UTF-8
        model.lm_head_bias[tokenizer.eos] = 5.0
    return save_model(model, folder, tokenizer=tokenizer.tokenizer)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_writer(tmp_path_factory.mktemp("models") / "writer")


@pytest.fixture
def generator(folder: Path) -> TextGenerator:
    return TextGenerator.load(folder)


@pytest.fixture
def precise(folder: Path) -> TextGenerator:
    """In float64, so that rounding does not depend on the batch."""
    generator = TextGenerator.load(folder)
    generator.model.double()
    return generator


def test_continuation_excludes_the_prompt(tmp_path: Path) -> None:
    """Word tokens have no spaces: whether one is inserted depends on the preceding token."""
    generator = TextGenerator.load(save_random_writer(tmp_path / "words", kind="word"))
    ((one, *_),) = generator.generate_batch(["old cat"], max_new_tokens=4, decode=GREEDY)
    assert one.tokens
    assert one.prompt + one.text == generator.tokenizer.decode([*generator.tokenizer.encode(one.prompt), *one.tokens])
    assert one.text.startswith(" ")
    assert "".join(generator.stream("old cat", max_new_tokens=4, decode=GREEDY)) == one.text


def told(one: GeneratedText) -> tuple[str, tuple[int, ...], bool]:
    return one.text, one.tokens, one.ended


# Continuations


@pytest.mark.parametrize("decode", [GREEDY, BEAMS, SAMPLED, SAMPLING], ids=["greedy", "beam_size", "drawn", "as it is"])
def test_text_is_its_decoded_tokens(decode: DecodeConfig, generator: TextGenerator) -> None:
    ((one, *_),) = generator.generate_batch(["red cat"], max_new_tokens=20, decode=decode)
    assert one.text == generator.tokenizer.decode(one.tokens)
    assert generator.generate("red cat", max_new_tokens=20, decode=decode) == one.text


@pytest.mark.parametrize("decode", [GREEDY, SAMPLED], ids=["greedy", "drawn"])
def test_logprob_is_the_sum_of_token_logprobs(decode: DecodeConfig, generator: TextGenerator) -> None:
    for (one,) in generator.generate_batch(PROMPTS, max_new_tokens=20, decode=decode):
        assert len(one.token_logprobs) == len(one.tokens) + one.ended
        assert one.logprob == pytest.approx(sum(one.token_logprobs))


def test_greedy_takes_the_most_probable_token(precise: TextGenerator) -> None:
    start = precise.config.special_tokens.bos
    assert start is not None
    ids = [start, *precise.tokenizer.encode("red")]
    written: list[int] = []
    for _ in range(12):
        best = int(precise.logits([ids + written])[0, -1].argmax())
        if best == precise.end_id:
            break
        written.append(best)
    ((one,),) = precise.generate_batch(["red"], max_new_tokens=12, decode=GREEDY)
    assert list(one.tokens) == written


def test_beam_search_returns_nbest_texts(generator: TextGenerator) -> None:
    ((*continuations,),) = generator.generate_batch(["red cat"], max_new_tokens=20, decode=BEAMS)
    assert len(continuations) == 3
    assert [one.score for one in continuations] == sorted((one.score for one in continuations), reverse=True)


def test_order_of_prompts_is_kept(generator: TextGenerator) -> None:
    continuations = generator.generate_batch(PROMPTS, max_new_tokens=5, decode=GREEDY)
    assert [one.prompt for (one,) in continuations] == PROMPTS


def test_no_prompts_give_no_texts(generator: TextGenerator) -> None:
    assert generator.generate_batch([]) == []


def test_progress_counts_prompts(generator: TextGenerator) -> None:
    progress: list[int] = []
    generator.generate_batch(PROMPTS, max_new_tokens=5, decode=GREEDY, progress=progress.append)
    assert progress[-1] == len(PROMPTS)


def test_empty_prompt_begins_with_bos(precise: TextGenerator) -> None:
    start = precise.config.special_tokens.bos
    assert start is not None
    ((one,),) = precise.generate_batch([""], max_new_tokens=1, decode=GREEDY)
    assert [*one.tokens, precise.end_id][0] == int(precise.logits([[start]])[0, -1].argmax())


def test_empty_prompt_without_bos_begins_with_eos(tmp_path: Path) -> None:
    generator = TextGenerator.load(save_random_writer(tmp_path / "model", start=False))
    ((one, *_),) = generator.generate_batch([""], max_new_tokens=1, decode=GREEDY)
    precise = TextGenerator.load(tmp_path / "model")
    assert [*one.tokens, precise.end_id][0] == int(precise.logits([[precise.end_id]])[0, -1].argmax())


def test_empty_prompt_without_bos_and_eos_is_refused(tmp_path: Path) -> None:
    generator = TextGenerator.load(save_random_writer(tmp_path / "model", start=False, end=False))
    with pytest.raises(UserError, match="An empty prompt needs a BOS token"):
        generator.generate("", max_new_tokens=3)


def test_model_without_bos_continues_a_prompt(tmp_path: Path) -> None:
    generator = TextGenerator.load(save_random_writer(tmp_path / "model", start=False))
    assert len(generator.generate_batch(["red"], max_new_tokens=3, decode=GREEDY)[0][0].tokens) <= 3


# Batches


@pytest.mark.parametrize("decode", [GREEDY, BEAMS], ids=["greedy", "beam_size"])
def test_batched_prompts_equal_single_prompts(decode: DecodeConfig, precise: TextGenerator) -> None:
    together = precise.generate_batch(PROMPTS, max_new_tokens=15, decode=decode)
    alone = [precise.generate_batch([prompt], max_new_tokens=15, decode=decode)[0] for prompt in PROMPTS]
    assert [[told(one) for one in each] for each in together] == [[told(one) for one in each] for each in alone]


def test_batched_sampling_equals_single_sampling(precise: TextGenerator) -> None:
    together = precise.generate_batch(PROMPTS, max_new_tokens=15, decode=SAMPLED)
    for number, prompt in enumerate(PROMPTS):
        seeded = SAMPLED.model_copy(update={"seed": SAMPLED.seed + number})
        assert told(precise.generate_batch([prompt], max_new_tokens=15, decode=seeded)[0][0]) == told(
            together[number][0]
        )


# Seeds


def test_same_seed_samples_the_same_text(generator: TextGenerator) -> None:
    assert generator.generate("red", max_new_tokens=20, decode=SAMPLED) == generator.generate(
        "red", max_new_tokens=20, decode=SAMPLED
    )


def test_different_seeds_sample_different_texts(generator: TextGenerator) -> None:
    seeds = [SAMPLED.model_copy(update={"seed": seed}) for seed in range(5)]
    assert len({generator.generate("red", max_new_tokens=20, decode=decode) for decode in seeds}) > 3


def test_repeated_prompts_are_sampled_independently(generator: TextGenerator) -> None:
    assert len({one.text for (one,) in generator.generate_batch(["red"] * 5, max_new_tokens=20, decode=SAMPLED)}) > 3


def test_temperature_of_0_is_greedy(generator: TextGenerator) -> None:
    cold = SAMPLED.model_copy(update={"temperature": 0.0})
    assert generator.generate("red", max_new_tokens=20, decode=cold) == generator.generate(
        "red", max_new_tokens=20, decode=GREEDY
    )


# Streaming


@pytest.mark.parametrize("stops", [(), ("a",), ("zzz", " ")], ids=["no stop", "a stop", "two stops"])
@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("seed", [0, 1])
def test_streamed_pieces_equal_the_generated_text(
    seed: int, prompt: str, stops: tuple[str, ...], precise: TextGenerator
) -> None:
    decode = SAMPLED.model_copy(update={"seed": seed})
    pieces = list(precise.stream(prompt, max_new_tokens=25, decode=decode, stop=stops))
    assert all(pieces)
    assert "".join(pieces) == precise.generate(prompt, max_new_tokens=25, decode=decode, stop=stops)


def test_stream_has_several_pieces(generator: TextGenerator) -> None:
    assert len(list(generator.stream("red", max_new_tokens=20, decode=SAMPLED))) > 1


def test_stream_can_be_abandoned(generator: TextGenerator) -> None:
    first = generator.stream("red", max_new_tokens=20, decode=SAMPLED)
    piece = next(first)
    del first
    assert "".join(generator.stream("red", max_new_tokens=20, decode=SAMPLED)).startswith(piece)


def test_streaming_beam_search_is_refused(generator: TextGenerator) -> None:
    with pytest.raises(UserError, match="beam size of 1"):
        next(generator.stream("red", decode=BEAMS))


def test_empty_prompt_streams(precise: TextGenerator) -> None:
    assert "".join(precise.stream("", max_new_tokens=9, decode=SAMPLED)) == precise.generate(
        "", max_new_tokens=9, decode=SAMPLED
    )


# Stop strings and lengths


def test_text_ends_before_a_stop_string(generator: TextGenerator) -> None:
    whole = generator.generate("red", max_new_tokens=30, decode=GREEDY)
    stop = whole[3:5]
    ((one,),) = generator.generate_batch(["red"], max_new_tokens=30, decode=GREEDY, stop=[stop])
    assert (one.text, one.ended) == (whole[: whole.index(stop)], True)


def test_stop_string_in_the_prompt_is_ignored(generator: TextGenerator) -> None:
    whole = generator.generate("xyz", max_new_tokens=10, decode=GREEDY)
    assert generator.generate("xyz", max_new_tokens=10, decode=GREEDY, stop=["xyz"]) == whole.split("xyz")[0]


@pytest.mark.parametrize("limit", [1, 2, 7])
def test_max_new_tokens_is_respected(limit: int, generator: TextGenerator) -> None:
    for decode in (GREEDY, BEAMS, SAMPLED):
        for each in generator.generate_batch(PROMPTS, max_new_tokens=limit, decode=decode):
            assert all(len(one.tokens) + one.ended <= limit for one in each)


def test_text_cut_at_max_new_tokens_has_not_ended(endless: TextGenerator) -> None:
    ((one,),) = endless.generate_batch(["red"], max_new_tokens=7, decode=GREEDY)
    assert (len(one.tokens), one.ended) == (7, False)


def test_max_new_tokens_of_0_is_refused(generator: TextGenerator) -> None:
    with pytest.raises(UserError, match="maximum length is 0"):
        generator.generate("red", max_new_tokens=0)


def test_model_without_eos_generates_max_new_tokens(endless: TextGenerator) -> None:
    continuations = endless.generate_batch(PROMPTS, max_new_tokens=40, decode=SAMPLED)
    assert [len(one.tokens) for (one,) in continuations] == [40] * len(PROMPTS)


def test_beam_search_without_eos_reaches_max_new_tokens(endless: TextGenerator) -> None:
    ((*continuations,),) = endless.generate_batch(["red"], max_new_tokens=6, decode=BEAMS)
    assert [(len(one.tokens), one.ended) for one in continuations] == [(6, False)] * 3


def test_stream_without_eos_reaches_max_new_tokens(endless: TextGenerator) -> None:
    pieces = endless.stream("red", max_new_tokens=6, decode=SAMPLED)
    assert "".join(pieces) == endless.generate("red", max_new_tokens=6, decode=SAMPLED)


def test_eos_comes_from_the_model_not_the_tokenizer(tmp_path: Path) -> None:
    assert TextGenerator.load(save_random_writer(tmp_path / "endless", end=False)).end_id == -1


@pytest.fixture
def endless(tmp_path: Path) -> TextGenerator:
    """A model without EOS, whose tokenizer has no EOS either."""
    folder = save_random_writer(tmp_path / "endless", end=False)
    return TextGenerator.load(without_special(folder, tmp_path / "bare"))


def without_special(folder: Path, place: Path) -> Path:
    """The same model; its tokenizer's special tokens have other names."""
    loaded = load_model(folder)
    assert loaded.tokenizer is not None
    plain = loaded.tokenizer.to_str()
    for name in ("⟨eos⟩", "⟨bos⟩", "⟨pad⟩"):
        plain = plain.replace(name, f"<{name[1:-1]}>")
    return save_model(loaded.model, place, tokenizer=type(loaded.tokenizer).from_str(plain))


# Constraints and alternatives


def test_forbidden_word_does_not_occur(generator: TextGenerator) -> None:
    whole = generator.generate("red", max_new_tokens=20, decode=GREEDY)
    constraints = make_constraints(generator.tokenizer, forbidden=[whole.strip()[0]])
    ((one,),) = generator.generate_batch(["red"], max_new_tokens=20, decode=GREEDY, constraints=constraints)
    assert whole.strip()[0] not in one.text


def test_required_word_occurs(generator: TextGenerator) -> None:
    constraints = make_constraints(generator.tokenizer, required=["sun"])
    ((one, *_),) = generator.generate_batch(["red"], max_new_tokens=20, decode=BEAMS, constraints=constraints)
    assert "sun" in one.text


def test_prefix_is_part_of_the_text(generator: TextGenerator) -> None:
    constraints = dataclasses.replace(make_constraints(generator.tokenizer, prefix=" sea"), seed=None)
    ((one,),) = generator.generate_batch(["red"], max_new_tokens=20, decode=GREEDY, constraints=constraints)
    assert one.text.startswith(" sea")


def test_first_alternative_is_the_greedy_token(generator: TextGenerator) -> None:
    ((one,),) = generator.generate_batch(["red"], max_new_tokens=8, decode=GREEDY, alternatives=3)
    taken = [*one.tokens, generator.end_id][: len(one.token_logprobs)]
    assert [each[0][0] for each in one.alternatives] == taken
    assert {len(each) for each in one.alternatives} == {3}


# Loading


def test_load_opens_a_text_generator(folder: Path) -> None:
    loaded = regard.load(folder)
    assert isinstance(loaded, TextGenerator)
    assert loaded.generate("red", max_new_tokens=5, decode=GREEDY) == TextGenerator.load(folder).generate(
        "red", max_new_tokens=5, decode=GREEDY
    )


def test_generator_computes_in_float32(folder: Path, tmp_path: Path) -> None:
    loaded = load_model(folder)
    save_model(loaded.model.half(), tmp_path / "half", tokenizer=loaded.tokenizer)
    for opened in (TextGenerator.load(tmp_path / "half"), regard.load(tmp_path / "half")):
        assert {tensor.dtype for tensor in opened.model.parameters()} == {torch.float32}


def test_model_without_tokenizer_is_a_plain_pipeline(folder: Path, tmp_path: Path) -> None:
    save_model(load_model(folder).model, tmp_path / "bare")
    assert not isinstance(regard.load(tmp_path / "bare"), TextGenerator)
    with pytest.raises(UserError) as refused:
        TextGenerator.load(tmp_path / "bare")
    assert str(refused.value).startswith(f"{tmp_path / 'bare'}: This model has no tokenizer")


def test_missing_folder_is_named_once(tmp_path: Path) -> None:
    with pytest.raises(UserError) as refused:
        TextGenerator.load(tmp_path / "none")
    assert str(refused.value).count(str(tmp_path / "none")) == 1


def test_translator_is_not_a_text_generator(tmp_path: Path) -> None:
    place = save_random_model(tmp_path / "translator")
    with pytest.raises(UserError) as refused:
        TextGenerator.load(place)
    assert str(refused.value) == f"{place}: This is not a language model. Use `regard translate` with it."
    assert isinstance(regard.load(place), Translator)


def test_tokenizer_has_the_models_special_tokens(generator: TextGenerator) -> None:
    assert isinstance(generator.tokenizer, TextTokenizer)
    assert (generator.tokenizer.bos, generator.end_id) == (
        generator.config.special_tokens.bos,
        generator.config.special_tokens.eos,
    )


@pytest.mark.parametrize(("start", "end"), [(True, True), (False, True), (False, False)])
def test_scores_of_texts_are_those_of_a_forward_pass(start: bool, end: bool, tmp_path: Path) -> None:
    """The first token is predicted from BOS, or from the EOS of another text, or not at all."""
    generator = TextGenerator.load(save_random_writer(tmp_path / "writer", start=start, end=end))
    texts = ["the old cat", "", "red", "a", "big dog and sea"]
    first = generator.prompt_ids([])
    found = generator.score(texts)
    for text, logprobs in zip(texts, found, strict=True):
        ids = [*first, *generator.tokenizer.encode(text)]
        expected = []
        if len(ids) > 1:
            rows = generator.logits([ids]).log_softmax(-1)[0, :-1].gather(1, torch.tensor(ids[1:])[:, None])
            expected = rows.flatten().tolist()
        assert logprobs == pytest.approx(expected, abs=1e-5)
        assert generator.score(text) == pytest.approx(logprobs, abs=1e-5)


def test_score_of_a_generated_text_is_its_log_probability(generator: TextGenerator) -> None:
    ((best, *_),) = generator.generate_batch([""], max_new_tokens=8, decode=GREEDY)
    assert generator.tokenizer.encode(best.text) == list(best.tokens)
    assert generator.score(best.text) == pytest.approx(best.token_logprobs[: len(best.tokens)], abs=1e-5)
