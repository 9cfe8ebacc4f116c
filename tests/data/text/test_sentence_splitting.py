"""Sentence splitting in several languages; the layout around the sentences is restored exactly."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard import UserError
from regard.data.text.sentence_splitting import Segment, split_sentences

# Texts of the marks and words that the rules look at, which random characters would rarely combine.
marks = st.sampled_from([*".!?…。！？,;:–-*#>)(»«“”„'\"", " ", "  ", "\xa0", "\t", "\n", "\r\n", "\n\n", "1", "12."])
words = st.sampled_from(
    ["The", "cat", "Dr", "z. B", "U.S", "Mai", "sınıf", "II", "etc", "p. ex", "はい", "e\u0301", "A"]
)
texts = st.text() | st.lists(marks | words, max_size=30).map("".join)


@given(texts)
def test_joined_sentences_are_the_text(text: str) -> None:
    split = split_sentences(text)
    assert split.join(split.sentences) == text


@given(texts, st.integers(1, 40))
def test_cut_sentences_are_short_and_join_to_the_text(text: str, max_characters: int) -> None:
    split = split_sentences(text, max_characters=max_characters)
    assert split.join(split.sentences) == text
    assert all(len(sentence) <= max_characters for sentence in split.sentences)


@given(texts, st.none() | st.integers(1, 40))
def test_sentences_are_not_empty_and_stripped(text: str, max_characters: int | None) -> None:
    for sentence in split_sentences(text, max_characters=max_characters).sentences:
        assert sentence
        assert sentence == sentence.strip()
        assert not {"\n", "\r"} & set(sentence)


@given(texts, st.integers(1, 40))
def test_cutting_moves_no_word_into_the_layout(text: str, max_characters: int) -> None:
    split = split_sentences(text, max_characters=max_characters)
    uncut = split_sentences(text)
    assert [*filter(str.isalnum, "".join(split.sentences))] == [*filter(str.isalnum, "".join(uncut.sentences))]


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
def test_sentence_boundaries_are_found(marked: str) -> None:
    assert split_sentences(marked.replace(" | ", " ")).sentences == tuple(marked.split(" | "))


@pytest.mark.parametrize("sentence", ONE)
def test_marks_that_do_not_end_a_sentence(sentence: str) -> None:
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


def test_join_replaces_the_sentences() -> None:
    split = split_sentences("Title\n\n  1. He came.  She went.\n  2. End\n")
    assert split.segments[1] == Segment("\n\n  1. ", "He came.")
    assert split.join(["Titel", "Er kam.", "Sie ging.", "Ende"]) == "Titel\n\n  1. Er kam.  Sie ging.\n  2. Ende\n"


def test_join_inserts_spaces_after_chinese() -> None:
    split = split_sentences("你好。再见。\n好。")
    assert split.join(["Hello.", "Goodbye.", "Good."]) == "Hello. Goodbye.\nGood."
    assert split.join(["こんにちは。", "さようなら。", "いいよ。"]) == "こんにちは。さようなら。\nいいよ。"


def test_wrong_number_of_translations_is_an_error() -> None:
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
def test_long_sentence_is_cut_at_the_best_mark(text: str, parts: tuple[str, ...]) -> None:
    assert split_sentences(text, max_characters=15).sentences == parts


def test_max_characters_must_be_positive() -> None:
    with pytest.raises(UserError, match="give at least 1"):
        split_sentences("One.", max_characters=0)


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "part", ["a", ".", " ", ". ", "A. ", "- ", "1. ", "。", "” ", ".” »", "z. B. ", "a, ", "\n", "\r"]
)
@pytest.mark.parametrize("max_characters", [None, 1000])
def test_time_is_linear_in_the_length(part: str, max_characters: int | None) -> None:
    """In quadratic time this would take hours."""
    text = part * 200_000 + "x"
    split = split_sentences(text, max_characters=max_characters)
    assert split.join(split.sentences) == text


def test_very_long_line_without_spaces_is_cut_by_length() -> None:
    text = "a" * 1_000_000
    assert split_sentences(text).sentences == (text,)
    assert split_sentences(text, max_characters=1000).sentences == ("a" * 1000,) * 1000
