"""`regard vectors`: words as arguments or on standard input, numbers as text or JSON, pictures as files."""

import json
from pathlib import Path

import pytest

from regard.interop.word_vectors import open_word_vectors
from tests.cli.refusal import assert_refused
from tests.task.small import Result, command

FILE = Path(__file__).parents[1] / "fixtures" / "word_vectors" / "gensim.txt"
KEYED = open_word_vectors(FILE)


def vectors(*args: object, stdin: bytes = b"") -> Result:
    return command("vectors", FILE, *args, stdin=stdin)


def test_near_prints_neighbors_of_arguments_and_of_lines() -> None:
    done = vectors("near", "king", "of", "--top", 2)
    expected = [f"{word}\t{one.word}\t{one.similarity:.4f}" for word in ("king", "of") for one in KEYED.near(word, 2)]
    assert (done.code, done.err, done.out.splitlines()) == (0, "", expected)
    assert vectors("near", "--top", 2, stdin=b"king\n\nof\n").out == done.out
    first, second = map(json.loads, vectors("near", "king", "of", "--top", 2, "--json").out.splitlines())
    assert (first["word"], second["word"]) == ("king", "of")
    assert [one["word"] for one in first["neighbors"]] == [one.word for one in KEYED.near("king", 2)]


def test_limit_answers_with_the_first_words() -> None:
    assert {line.split("\t")[1] for line in vectors("near", "king", "--limit", 2).out.splitlines()} == {"the", "of"}


def test_analogy_and_similarity_and_odd() -> None:
    (best,) = KEYED.analogy("the", "of", "king")
    answer = vectors("analogy", "the", "of", "king", "--top", 1)
    assert answer.out == f"the of king\t{best.word}\t{best.similarity:.4f}\n"
    assert vectors("analogy", "--top", 1, stdin=b"the of king\n").out == answer.out
    assert vectors("similarity", "king", "queen").out == f"king\tqueen\t{KEYED.similarity('king', 'queen'):.4f}\n"
    assert vectors("similarity", stdin=b"king queen\nof\tthe\n").out.count("\n") == 2
    record = json.loads(vectors("odd", "king", "of", "queen", "the", "--json").out)
    assert record["odd"] == KEYED.odd(["king", "of", "queen", "the"])[0].word == record["similarities"][0]["word"]


def test_compare_with_itself_and_with_the_embeddings_of_a_translator(tmp_path: Path) -> None:
    done = vectors("compare", FILE, "--neighbors", 3, "--json")
    record = json.loads(done.out)
    assert (record["shared"], record["overlap"], record["similarity"]) == (7, 1, 1)
    assert len(record["most_different"]) == 7
    (tmp_path / "small.txt").write_text("the 1 2\nfather 2 1\nxyz 1 1\ncat 0 1\n")
    assert command("vectors", tmp_path / "small.txt", "compare", "en-tr").out.startswith("3 words in common, 3 of them")


def test_help_of_a_command_needs_no_model() -> None:
    done = command("vectors", "near", "--help")
    assert done.code == 0
    assert "{MODEL} near [OPTIONS]" in done.out


def test_a_word_has_one_static_vector_but_others_in_other_sentences(tmp_path: Path) -> None:
    sentences = ("The king is old.", "the queen and the king")
    static = json.loads(vectors("context", "king", *sentences, "--json").out)["cosines"]
    assert static == [[pytest.approx(1)] * 2] * 2
    args = ("vectors", "en-tr", "context", "king", *sentences)
    (_, between), (other, _) = json.loads(command(*args, "--json").out)["cosines"]
    assert between == other < 0.99
    (_, embeddings), _ = json.loads(command(*args, "--layer", 0, "--json").out)["cosines"]
    assert embeddings > between  # positions differ, the token does not
    assert command(*args).out.splitlines()[1].endswith(f"1.0000\t{sentences[1]}")
    assert command(*args, "--output", tmp_path / "king.svg").code == 0
    assert "queen and the king" in (tmp_path / "king.svg").read_text(encoding="utf-8")
    assert_refused(command("vectors", "en-tr", "context", "king", sentences[0]), "two sentences or more")
    assert_refused(
        command("vectors", "en-tr", "context", "king", "no such", "word"), "'king' has no vector in 'no such'"
    )


@pytest.mark.parametrize("suffix", [".svg", ".html"])
@pytest.mark.parametrize(
    "args",
    [
        ("bars", "king"),
        ("matrix", "the", "king", "--softmax", "--causal"),
        ("map", "--skip", 0),
        ("map", "--method", "pca", *KEYED.words),
    ],
)
def test_pictures_are_written(args: tuple[str, ...], suffix: str, tmp_path: Path) -> None:
    done = vectors(*args, "--output", tmp_path / f"picture{suffix}")
    assert (done.code, done.out, done.err) == (0, "", "")
    page = (tmp_path / f"picture{suffix}").read_text("utf-8")
    assert page.startswith("<svg" if suffix == ".svg" else "<!DOCTYPE html>")
    assert "king" in page


def test_numbers_of_pictures_are_printed() -> None:
    word, *numbers = vectors("bars", stdin=b"king\n").out.split()
    assert word == "king"
    assert [float(one) for one in numbers] == pytest.approx(KEYED["king"].tolist(), abs=1e-4)
    matrix = json.loads(vectors("matrix", "of", "king", "--causal", "--json").out)["matrix"]
    assert matrix == [[1, None], [pytest.approx(KEYED.similarity("of", "king"), abs=1e-5), 1]]
    assert vectors("matrix", "of", "king").out.splitlines()[0] == "\tof\tking"
    assert len(vectors("map", "--skip", 2).out.splitlines()) == 5


def test_words_of_a_map_may_have_groups(tmp_path: Path) -> None:
    (tmp_path / "words.tsv").write_text("king\troyal\nqueen\troyal\nthe\tsmall\nof\tsmall\n")
    assert vectors("map", "--file", tmp_path / "words.tsv", "--output", tmp_path / "map.svg").code == 0
    page = (tmp_path / "map.svg").read_text("utf-8")
    assert ">royal</text>" in page
    assert "<title>king (royal)</title>" in page


def test_documents_are_scored_by_label(tmp_path: Path) -> None:
    rows = [("the king of", "a"), ("the king", "a"), ("queen café of", "b"), ("queen café", "b")]
    (tmp_path / "texts.tsv").write_text("".join(f"{text}\t{label}\n" for text, label in rows))
    done = vectors("documents", "--data", tmp_path / "texts.tsv", "--output", tmp_path / "map.html", "--json")
    record = json.loads(done.out)
    assert (record["documents"], record["known_words"]) == (4, 1)
    assert [one["genre"] for one in record["genres"]] == ["a", "b"]
    assert "the king of" in (tmp_path / "map.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (("near", "kign"), "there is no vector for 'kign'; did you mean king?"),
        (("analogy", "king", "of"), "an analogy needs 3 words, such as man king woman; found 2: 'king of'"),
        (("similarity", "king"), "a similarity needs 2 words"),
        (("odd", "king", "of"), "at least 3 words; found 2"),
        (("bars", "king", "--output", "king.png"), "king.png: the picture is written as .svg or .html"),
        (("map", "--skip", 6), "A map needs at least 3 words; found 1"),
        (("map", "king", "--file", FILE), "WORD and --file both name the words"),
        (("matrix",), "No words were given"),
        (("compare", "nowhere.txt"), "nowhere.txt: there is no such file or model"),
    ],
)
def test_bad_question_is_refused_in_one_sentence(args: tuple[object, ...], problem: str) -> None:
    assert_refused(vectors(*args), problem)


def test_vector_file_is_scored_on_the_users_pairs_and_analogies(tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text("king\tqueen\t9\nof\tthe\t3\nking\tcafé\t1\nking\tunicorn\t5\n")
    done = command("score", FILE, "--data", tmp_path / "pairs.tsv")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"{FILE} on given: Spearman ")
    assert "3 of 4 pairs (75.0% known)" in done.out
    (tmp_path / "analogies.txt").write_text(": one\nthe of king queen\n")
    record = json.loads(command("score", FILE, "--data", tmp_path / "analogies.txt", "--json").out)
    answer = KEYED.analogy("the", "of", "king")[0].word
    assert record["sections"]["one"] == {"correct": int(answer == "queen"), "known": 1, "questions": 1}


def test_two_sets_of_vectors_are_scored_on_what_both_know(tmp_path: Path) -> None:
    (tmp_path / "small.txt").write_text("king 1 2\nqueen 2 1\nof 1 1\nthe 0 1\n")
    (tmp_path / "pairs.tsv").write_text("king\tqueen\t9\nof\tthe\t3\nking\tcafé\t1\n")
    done = command("score", FILE, "--against", tmp_path / "small.txt", "--data", tmp_path / "pairs.tsv")
    assert [line.partition(" on 2 of 3 pairs")[1] != "" for line in done.out.splitlines()] == [True, True]


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (("--tokenized",), "--tokenized is for translations, but these are word vectors"),
        (("--test", "wordsim"), "There is no test of word vectors named 'wordsim'"),
        (("--logprobs",), "--logprobs"),
    ],
)
def test_options_for_other_models_are_refused(args: tuple[str, ...], problem: str) -> None:
    assert_refused(command("score", FILE, *args), problem)
