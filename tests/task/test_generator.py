"""A language model goes on with a text: at once or in pieces, alone or with others, the same."""

import dataclasses
from pathlib import Path

import pytest
import torch

import regard
from regard import UserError
from regard.attention import HeadsConfig
from regard.data.tokenizer import TextTokenizer
from regard.data.tokenizer_training import Kind, TokenizerConfig, train_tokenizer
from regard.decode import DecodeConfig
from regard.model import FeedForwardConfig, LanguageModelConfig, StackConfig
from regard.model.embedding import TokensConfig
from regard.run import load, save
from regard.task import Generated, Generator, Translator, load_generator
from regard.task.generator import SAMPLING
from regard.task.words import make_wish
from tests.task.small import save_random_model, sentences

GREEDY = DecodeConfig(beams=1)
BEAMS = DecodeConfig(beams=3)
DRAWN = DecodeConfig(beams=1, sample=True, temperature=1.5)
PROMPTS = ["red", "the old cat and the sea", "", "big dog"]


def save_random_writer(folder: Path, *, end: bool = True, start: bool = True, kind: Kind = "character") -> Path:
    """A run folder with a small untrained language model, its weights so large that its texts differ."""
    tokenizer = train_tokenizer(TokenizerConfig(kind=kind), sentences(20))
    assert tokenizer.start is not None
    assert tokenizer.end is not None
    torch.manual_seed(3)
    config = LanguageModelConfig(
        vocabulary=tokenizer.vocabulary,
        width=16,
        decoder=StackConfig(
            layers=2, attention=HeadsConfig(heads=2), feed_forward=FeedForwardConfig(hidden=32), dropout=0.0
        ),
        tokens=TokensConfig(
            padding=tokenizer.padding,
            start=tokenizer.start if start else None,
            end=tokenizer.end if end else None,
        ),
        tie=False,
        output_bias=True,
    )
    model = config.build().eval()
    with torch.no_grad():
        model.vocabulary.weight.mul_(2.5)
        assert model.output_bias is not None
        for text in sentences(20):
            model.output_bias[tokenizer.encode(text)] = 6.0  # letters, rather than bytes that are no text
        model.output_bias[tokenizer.end] = 5.0
    return save(model, folder, tokenizer=tokenizer.tokenizer)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_writer(tmp_path_factory.mktemp("models") / "writer")


@pytest.fixture
def generator(folder: Path) -> Generator:
    return load_generator(folder)


@pytest.fixture
def precise(folder: Path) -> Generator:
    """In float64, where texts beside others round as they do alone."""
    generator = load_generator(folder)
    generator.model.double()
    return generator


def test_words_are_parted_from_the_prompt(tmp_path: Path) -> None:
    """Tokens that are words carry no blanks: whether one comes is told by what stands before."""
    generator = load_generator(save_random_writer(tmp_path / "words", kind="word"))
    ((one, *_),) = generator.generate_all(["old cat"], limit=4, decode=GREEDY)
    assert one.tokens
    assert one.prompt + one.text == generator.text.decode([*generator.text.encode(one.prompt), *one.tokens])
    assert one.text.startswith(" ")
    assert "".join(generator.stream("old cat", limit=4, decode=GREEDY)) == one.text


def told(one: Generated) -> tuple[str, tuple[int, ...], bool]:
    return one.text, one.tokens, one.ended


# How a text goes on.


@pytest.mark.parametrize("decode", [GREEDY, BEAMS, DRAWN, SAMPLING], ids=["greedy", "beams", "drawn", "as it is"])
def test_a_text_is_the_text_of_its_tokens(decode: DecodeConfig, generator: Generator) -> None:
    ((one, *_),) = generator.generate_all(["red cat"], limit=20, decode=decode)
    assert one.text == generator.text.decode(one.tokens)
    assert generator.generate("red cat", limit=20, decode=decode) == one.text


@pytest.mark.parametrize("decode", [GREEDY, DRAWN], ids=["greedy", "drawn"])
def test_a_log_probability_is_the_sum_of_its_steps(decode: DecodeConfig, generator: Generator) -> None:
    for (one,) in generator.generate_all(PROMPTS, limit=20, decode=decode):
        assert len(one.steps) == len(one.tokens) + one.ended
        assert one.log_probability == pytest.approx(sum(one.steps))


def test_greedy_search_takes_the_likeliest_token_after_the_start_and_the_prompt(precise: Generator) -> None:
    start = precise.config.tokens.start
    assert start is not None
    ids = [start, *precise.text.encode("red")]
    written: list[int] = []
    for _ in range(12):
        best = int(precise.logits([ids + written])[0, -1].argmax())
        if best == precise.end:
            break
        written.append(best)
    ((one,),) = precise.generate_all(["red"], limit=12, decode=GREEDY)
    assert list(one.tokens) == written


def test_beams_give_as_many_texts_best_first(generator: Generator) -> None:
    ((*found,),) = generator.generate_all(["red cat"], limit=20, decode=BEAMS)
    assert len(found) == 3
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)


def test_every_prompt_gets_its_texts_in_order(generator: Generator) -> None:
    found = generator.generate_all(PROMPTS, limit=5, decode=GREEDY)
    assert [one.prompt for (one,) in found] == PROMPTS


def test_no_prompts_give_no_texts(generator: Generator) -> None:
    assert generator.generate_all([]) == []


def test_progress_counts_prompts(generator: Generator) -> None:
    heard: list[int] = []
    generator.generate_all(PROMPTS, limit=5, decode=GREEDY, progress=heard.append)
    assert heard[-1] == len(PROMPTS)


def test_an_empty_prompt_begins_with_the_start_token(precise: Generator) -> None:
    start = precise.config.tokens.start
    assert start is not None
    ((one,),) = precise.generate_all([""], limit=1, decode=GREEDY)
    assert [*one.tokens, precise.end][0] == int(precise.logits([[start]])[0, -1].argmax())


def test_an_empty_prompt_without_a_start_token_begins_behind_the_end_of_another_text(tmp_path: Path) -> None:
    generator = load_generator(save_random_writer(tmp_path / "model", start=False))
    ((one, *_),) = generator.generate_all([""], limit=1, decode=GREEDY)
    precise = load_generator(tmp_path / "model")
    assert [*one.tokens, precise.end][0] == int(precise.logits([[precise.end]])[0, -1].argmax())


def test_an_empty_prompt_with_neither_a_start_nor_an_end_token_is_refused(tmp_path: Path) -> None:
    generator = load_generator(save_random_writer(tmp_path / "model", start=False, end=False))
    with pytest.raises(UserError, match="An empty prompt needs a start token"):
        generator.generate("", limit=3)


def test_a_model_without_a_start_token_goes_on_with_a_prompt(tmp_path: Path) -> None:
    generator = load_generator(save_random_writer(tmp_path / "model", start=False))
    assert len(generator.generate_all(["red"], limit=3, decode=GREEDY)[0][0].tokens) <= 3


# Alone and beside others.


@pytest.mark.parametrize("decode", [GREEDY, BEAMS], ids=["greedy", "beams"])
def test_prompts_of_different_lengths_get_what_they_get_alone(decode: DecodeConfig, precise: Generator) -> None:
    together = precise.generate_all(PROMPTS, limit=15, decode=decode)
    alone = [precise.generate_all([prompt], limit=15, decode=decode)[0] for prompt in PROMPTS]
    assert [[told(one) for one in each] for each in together] == [[told(one) for one in each] for each in alone]


def test_a_drawn_text_beside_others_is_that_of_its_own_seed_alone(precise: Generator) -> None:
    together = precise.generate_all(PROMPTS, limit=15, decode=DRAWN)
    for number, prompt in enumerate(PROMPTS):
        seeded = DRAWN.model_copy(update={"seed": DRAWN.seed + number})
        assert told(precise.generate_all([prompt], limit=15, decode=seeded)[0][0]) == told(together[number][0])


# Seeds.


def test_the_same_seed_draws_the_same_text(generator: Generator) -> None:
    assert generator.generate("red", limit=20, decode=DRAWN) == generator.generate("red", limit=20, decode=DRAWN)


def test_different_seeds_draw_different_texts(generator: Generator) -> None:
    seeds = [DRAWN.model_copy(update={"seed": seed}) for seed in range(5)]
    assert len({generator.generate("red", limit=20, decode=decode) for decode in seeds}) > 3


def test_the_same_prompt_several_times_in_a_call_is_drawn_anew_each_time(generator: Generator) -> None:
    assert len({one.text for (one,) in generator.generate_all(["red"] * 5, limit=20, decode=DRAWN)}) > 3


def test_a_temperature_of_nothing_is_greedy(generator: Generator) -> None:
    cold = DRAWN.model_copy(update={"temperature": 0.0})
    assert generator.generate("red", limit=20, decode=cold) == generator.generate("red", limit=20, decode=GREEDY)


# Piece by piece.


@pytest.mark.parametrize("stops", [(), ("a",), ("zzz", " ")], ids=["no stop", "a stop", "two stops"])
@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("seed", [0, 1])
def test_pieces_put_together_are_the_text_of_the_same_seed(
    seed: int, prompt: str, stops: tuple[str, ...], precise: Generator
) -> None:
    decode = DRAWN.model_copy(update={"seed": seed})
    pieces = list(precise.stream(prompt, limit=25, decode=decode, stops=stops))
    assert all(pieces)
    assert "".join(pieces) == precise.generate(prompt, limit=25, decode=decode, stops=stops)


def test_a_text_comes_in_more_than_one_piece(generator: Generator) -> None:
    assert len(list(generator.stream("red", limit=20, decode=DRAWN))) > 1


def test_a_stream_may_be_left_early_and_another_begun(generator: Generator) -> None:
    first = generator.stream("red", limit=20, decode=DRAWN)
    piece = next(first)
    del first
    assert "".join(generator.stream("red", limit=20, decode=DRAWN)).startswith(piece)


def test_a_stream_of_beams_is_refused(generator: Generator) -> None:
    with pytest.raises(UserError, match="stream with one beam"):
        next(generator.stream("red", decode=BEAMS))


def test_an_empty_prompt_streams(precise: Generator) -> None:
    assert "".join(precise.stream("", limit=9, decode=DRAWN)) == precise.generate("", limit=9, decode=DRAWN)


# Where it ends.


def test_a_text_ends_before_a_stop(generator: Generator) -> None:
    whole = generator.generate("red", limit=30, decode=GREEDY)
    stop = whole[3:5]
    ((one,),) = generator.generate_all(["red"], limit=30, decode=GREEDY, stops=[stop])
    assert (one.text, one.ended) == (whole[: whole.index(stop)], True)


def test_a_stop_in_the_prompt_stops_nothing(generator: Generator) -> None:
    whole = generator.generate("xyz", limit=10, decode=GREEDY)
    assert generator.generate("xyz", limit=10, decode=GREEDY, stops=["xyz"]) == whole.split("xyz")[0]


@pytest.mark.parametrize("limit", [1, 2, 7])
def test_no_text_has_more_tokens_than_the_limit(limit: int, generator: Generator) -> None:
    for decode in (GREEDY, BEAMS, DRAWN):
        for each in generator.generate_all(PROMPTS, limit=limit, decode=decode):
            assert all(len(one.tokens) + one.ended <= limit for one in each)


def test_a_text_cut_at_the_limit_has_not_ended(endless: Generator) -> None:
    ((one,),) = endless.generate_all(["red"], limit=7, decode=GREEDY)
    assert (len(one.tokens), one.ended) == (7, False)


def test_a_limit_of_nothing_is_refused(generator: Generator) -> None:
    with pytest.raises(UserError, match="The limit is 0 tokens"):
        generator.generate("red", limit=0)


def test_a_model_without_an_end_writes_up_to_the_limit(endless: Generator) -> None:
    found = endless.generate_all(PROMPTS, limit=40, decode=DRAWN)
    assert [len(one.tokens) for (one,) in found] == [40] * len(PROMPTS)


def test_beams_of_a_model_without_an_end_reach_the_limit(endless: Generator) -> None:
    ((*found,),) = endless.generate_all(["red"], limit=6, decode=BEAMS)
    assert [(len(one.tokens), one.ended) for one in found] == [(6, False)] * 3


def test_a_stream_of_a_model_without_an_end_reaches_the_limit(endless: Generator) -> None:
    pieces = endless.stream("red", limit=6, decode=DRAWN)
    assert "".join(pieces) == endless.generate("red", limit=6, decode=DRAWN)


def test_a_model_without_an_end_has_none_though_its_tokenizer_has_a_token_called_so(tmp_path: Path) -> None:
    assert load_generator(save_random_writer(tmp_path / "endless", end=False)).end == -1


@pytest.fixture
def endless(tmp_path: Path) -> Generator:
    """A model without an end, and no token of our name for it either."""
    folder = save_random_writer(tmp_path / "endless", end=False)
    return load_generator(without_special(folder, tmp_path / "bare"))


def without_special(folder: Path, place: Path) -> Path:
    """The same model, its tokenizer's special tokens under names that are not ours."""
    loaded = load(folder)
    assert loaded.tokenizer is not None
    plain = loaded.tokenizer.to_str()
    for name in ("⟨end⟩", "⟨start⟩", "⟨padding⟩"):
        plain = plain.replace(name, f"<{name[1:-1]}>")
    return save(loaded.model, place, tokenizer=type(loaded.tokenizer).from_str(plain))


# Words.


def test_a_forbidden_word_does_not_come(generator: Generator) -> None:
    whole = generator.generate("red", limit=20, decode=GREEDY)
    wish = make_wish(generator.text, forbidden=[whole.strip()[0]])
    ((one,),) = generator.generate_all(["red"], limit=20, decode=GREEDY, wish=wish)
    assert whole.strip()[0] not in one.text


def test_a_required_word_comes(generator: Generator) -> None:
    wish = make_wish(generator.text, required=["sun"])
    ((one, *_),) = generator.generate_all(["red"], limit=20, decode=BEAMS, wish=wish)
    assert "sun" in one.text


def test_a_beginning_is_part_of_the_text(generator: Generator) -> None:
    wish = dataclasses.replace(make_wish(generator.text, prefix=" sea"), seed=None)
    ((one,),) = generator.generate_all(["red"], limit=20, decode=GREEDY, wish=wish)
    assert one.text.startswith(" sea")


def test_alternatives_of_every_step_begin_with_the_token_greedy_search_took(generator: Generator) -> None:
    ((one,),) = generator.generate_all(["red"], limit=8, decode=GREEDY, alternatives=3)
    taken = [*one.tokens, generator.end][: len(one.steps)]
    assert [each[0][0] for each in one.alternatives] == taken
    assert {len(each) for each in one.alternatives} == {3}


# What is opened.


def test_a_language_model_is_opened_as_a_generator(folder: Path) -> None:
    loaded = regard.load(folder)
    assert isinstance(loaded, Generator)
    assert loaded.generate("red", limit=5, decode=GREEDY) == load_generator(folder).generate(
        "red", limit=5, decode=GREEDY
    )


def test_a_generator_computes_in_float32_whatever_is_stored(folder: Path, tmp_path: Path) -> None:
    loaded = load(folder)
    save(loaded.model.half(), tmp_path / "half", tokenizer=loaded.tokenizer)
    for opened in (load_generator(tmp_path / "half"), regard.load(tmp_path / "half")):
        assert {tensor.dtype for tensor in opened.model.parameters()} == {torch.float32}


def test_a_language_model_without_tokenizer_is_opened_for_ids_only(folder: Path, tmp_path: Path) -> None:
    save(load(folder).model, tmp_path / "bare")
    assert not isinstance(regard.load(tmp_path / "bare"), Generator)
    with pytest.raises(UserError) as refused:
        load_generator(tmp_path / "bare")
    assert str(refused.value) == f"{tmp_path / 'bare'}: This model has no tokenizer, so it can take ids but no text."


def test_a_folder_that_is_not_there_is_named_once(tmp_path: Path) -> None:
    with pytest.raises(UserError) as refused:
        load_generator(tmp_path / "none")
    assert str(refused.value).count(str(tmp_path / "none")) == 1


def test_a_translator_is_no_generator_and_is_named(tmp_path: Path) -> None:
    place = save_random_model(tmp_path / "translator")
    with pytest.raises(UserError) as refused:
        load_generator(place)
    assert str(refused.value) == (f"{place}: This is no language model: it translates. Use `regard translate` with it.")
    assert isinstance(regard.load(place), Translator)


def test_a_generator_does_not_translate(generator: Generator) -> None:
    with pytest.raises(UserError, match="This model does not translate"):
        generator.translate("red")


def test_the_tokenizer_of_a_generator_knows_the_special_tokens_of_its_model(generator: Generator) -> None:
    assert isinstance(generator.text, TextTokenizer)
    assert (generator.text.start, generator.end) == (generator.config.tokens.start, generator.config.tokens.end)
