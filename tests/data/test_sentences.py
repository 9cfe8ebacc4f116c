"""Sentences of a text: what is one in four languages, and that the layout around them comes back to the character."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard import UserError
from regard.data.sentences import Piece, split_sentences

# Texts made of what the rules look at, which random characters would seldom put together.
signs = st.sampled_from([*".!?…。！？,;:–-*#>)(»«“”„'\"", " ", "  ", "\xa0", "\t", "\n", "\r\n", "\n\n", "1", "12."])
words = st.sampled_from(
    ["The", "cat", "Dr", "z. B", "U.S", "Mai", "sınıf", "II", "etc", "p. ex", "はい", "e\u0301", "A"]
)
texts = st.text() | st.lists(signs | words, max_size=30).map("".join)


@given(texts)
def test_the_sentences_put_back_are_the_text(text: str) -> None:
    split = split_sentences(text)
    assert split.join(split.sentences) == text


@given(texts, st.integers(1, 40))
def test_cut_sentences_put_back_are_the_text_and_none_is_too_long(text: str, longest: int) -> None:
    split = split_sentences(text, longest=longest)
    assert split.join(split.sentences) == text
    assert all(len(sentence) <= longest for sentence in split.sentences)


@given(texts, st.none() | st.integers(1, 40))
def test_a_sentence_has_something_in_it_and_no_white_space_around(text: str, longest: int | None) -> None:
    for sentence in split_sentences(text, longest=longest).sentences:
        assert sentence
        assert sentence == sentence.strip()
        assert not {"\n", "\r"} & set(sentence)


@given(texts, st.integers(1, 40))
def test_cutting_loses_no_word_to_the_layout(text: str, longest: int) -> None:
    split = split_sentences(text, longest=longest)
    whole = split_sentences(text)
    assert [*filter(str.isalnum, "".join(split.sentences))] == [*filter(str.isalnum, "".join(whole.sentences))]


TWO_OR_MORE = [
    # English
    "He came. | She went.",
    "Really? | Yes! | Good.",
    "“Stop!” | She ran.",
    'He said "no." | Then he left.',
    "(It rained.) | We stayed.",
    "It was 1990. | She was ten.",
    "I waited… | Nobody came.",
    "We met at 5 p.m. | The train was late.",
    "He lives in the U.S. | He likes it.",
    "Apples, pears etc. | They are cheap.",
    "I don't. | You do.",
    "See www.example.org. | It is there.",
    "What?! | No.",
    "It has 3 parts. | 2 are new.",
    "It begins at 19:45. | Tickets are free.",
    # German
    "Er kam. | Sie ging.",
    "„Halt!“ | Er blieb stehen.",
    "Er rief: »Halt.« | Sie blieb stehen.",
    "Er kam. | »Hallo«, sagte er.",
    "Das kostet 5 €. | Über Geld spricht man nicht.",
    "Es gibt Äpfel, Birnen usw. | Die sind billig.",
    "Ist das so? | Ja.",
    # French
    "Il vient. | Elle part.",
    "« Viens ! » | Il partit.",
    "Il dit : « Non. » | Elle sourit.",
    "Ça va ? | Oui !",
    "C'est fini. | À demain.",
    # Turkish
    "Kedi geldi. | Köpek gitti.",
    "Neden? | Çünkü öyle.",
    "Elma, armut vb. | Bunlar ucuz.",
    "İstanbul'a gitti. | Şimdi orada.",
    "“Gel!” | Ali koştu.",
    # other scripts
    "Он пришёл. | Она ушла.",
    "ذهب الولد. | جاءت البنت.",
    "वह आया। | वह गई।",
]

ONE = [
    # English
    "Mr. Smith met Mrs. Jones and Dr. Brown.",
    "J. R. R. Tolkien wrote it.",
    "Some animals, e.g. Cats and i.e. Dogs, sleep.",
    "The U.S. Army left at 5 a.m. Monday.",
    "It costs 3.50 or 1,000.25 dollars.",
    "Open file.txt or https://example.org/a.b?c=D. now",
    "Well... maybe not.",
    "“Stop!” she said.",
    "See No. 5, fig. 3 and vol. 12.",
    "On Dec. 5 he came.",
    "Smith et al. Nature 2001",
    "Is it?no",
    # German
    "Am 5. Januar kam er.",
    "Im 19. Jahrhundert, z. B. Anfang 1848, war das anders.",
    "Er mag Obst, d. h. Äpfel, u. a. Boskop bzw. Elstar.",
    "Das ist Nr. 5 von Prof. Dr. Müller.",
    "Ludwig XIV. König von Frankreich",
    "Das tat er, z.B. Die Zeit las er.",
    "„Halt!“, rief er.",
    "Karl-H. Meier kam.",
    # French
    "M. Le Goff et Mme. Dupont sont là.",
    "Des fruits, p. ex. Pommes et poires.",
    "« Viens ! » dit-il.",
    "Selon l'U.S. Census Bureau",
    "Qu'est-ce que c'est ? demanda-t-il.",
    # Turkish
    "3. sınıf öğrencileri geldi.",
    "Prof. Dr. Ayşe Yılmaz ve Sn. Demir geldi.",
    "II. Abdülhamid tahta çıktı.",
    "Törende, bkz. Ek, 29. Ekim günü söyledi.",
    "“Gel!” dedi.",
]


@pytest.mark.parametrize("marked", TWO_OR_MORE)
def test_sentences_end_where_they_do(marked: str) -> None:
    assert split_sentences(marked.replace(" | ", " ")).sentences == tuple(marked.split(" | "))


@pytest.mark.parametrize("sentence", ONE)
def test_a_mark_inside_a_sentence_does_not_end_it(sentence: str) -> None:
    assert split_sentences(sentence).sentences == (sentence,)


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("彼は来た。彼女は行った。", ("彼は来た。", "彼女は行った。")),
        ("「はい。」「いいえ。」", ("「はい。」", "「いいえ。」")),
        ("「はい。」と言った。", ("「はい。」と言った。",)),
        ("你好！你来吗？来。", ("你好！", "你来吗？", "来。")),
    ],
)
def test_chinese_and_japanese_need_no_space(text: str, sentences: tuple[str, ...]) -> None:
    assert split_sentences(text).sentences == sentences


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("- One.\n- Two.", ("One.", "Two.")),
        ("  * One\n    + two\n", ("One", "two")),
        ("1. First\n2. Second. Third.\n", ("First", "Second.", "Third.")),
        ("a) first\n(b) second\n3) third", ("first", "second", "third")),
        ("# Title\n\n> Quoted.\n", ("Title", "Quoted.")),
        ("– Bonjour.\n— Salut.", ("Bonjour.", "Salut.")),
        ("3. Mai\n", ("3. Mai",)),
        ("3. sınıf\n", ("3. sınıf",)),
        ("One\r\n\r\n\ttwo\r\n", ("One", "two")),
        ("one line\nand another", ("one line", "and another")),
        ("One.\n---\n* * *\n…\nTwo.", ("One.", "Two.")),
        ("- \n1.\n", ("1.",)),
        ("", ()),
        (" \n\n ", ()),
    ],
)
def test_bullets_numbers_and_blank_lines_are_layout(text: str, sentences: tuple[str, ...]) -> None:
    assert split_sentences(text).sentences == sentences


def test_translations_take_the_place_of_the_sentences() -> None:
    split = split_sentences("Title\n\n  1. He came.  She went.\n  2. End\n")
    assert split.pieces[1] == Piece("\n\n  1. ", "He came.")
    assert split.join(["Titel", "Er kam.", "Sie ging.", "Ende"]) == "Titel\n\n  1. Er kam.  Sie ging.\n  2. Ende\n"


def test_a_translation_from_chinese_gets_the_space_it_needs() -> None:
    split = split_sentences("你好。再见。\n好。")
    assert split.join(["Hello.", "Goodbye.", "Good."]) == "Hello. Goodbye.\nGood."
    assert split.join(["こんにちは。", "さようなら。", "いいよ。"]) == "こんにちは。さようなら。\nいいよ。"


def test_too_few_translations_are_an_error() -> None:
    with pytest.raises(ValueError, match="1 translations were given for 2 sentences"):
        split_sentences("One. Two.").join(["Eins."])


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("one two, three; four five", ("one two, three;", "four five")),
        ("one two, three four five", ("one two,", "three four five")),
        ("one two three: four, five", ("one two three:", "four, five")),
        ("one two – three four five", ("one two –", "three four five")),
        ("one two three four five", ("one two three", "four five")),
        ("aaaaaaaaaaaaaaaaaaaabbb", ("aaaaaaaaaaaaaaa", "aaaaabbb")),
        ("a, bbbbbbbbbbbb cccccc", ("a, bbbbbbbbbbbb", "cccccc")),
        ("one                                two", ("one", "two")),
    ],
)
def test_a_long_sentence_is_cut_where_it_does_the_least_harm(text: str, parts: tuple[str, ...]) -> None:
    assert split_sentences(text, longest=15).sentences == parts


def test_a_sentence_cannot_be_cut_to_nothing() -> None:
    with pytest.raises(UserError, match="give at least 1"):
        split_sentences("One.", longest=0)


@pytest.mark.parametrize(
    "part", ["a", ".", " ", ". ", "A. ", "- ", "1. ", "。", "” ", ".” »", "z. B. ", "a, ", "\n", "\r"]
)
@pytest.mark.parametrize("longest", [None, 1000])
def test_time_is_linear_in_the_length(part: str, longest: int | None) -> None:
    """If every character were looked at from every other, this would take hours."""
    text = part * 200_000 + "x"
    split = split_sentences(text, longest=longest)
    assert split.join(split.sentences) == text


def test_a_line_of_a_million_characters_without_a_space_is_one_sentence_or_many_parts() -> None:
    text = "a" * 1_000_000
    assert split_sentences(text).sentences == (text,)
    assert split_sentences(text, longest=1000).sentences == ("a" * 1000,) * 1000
