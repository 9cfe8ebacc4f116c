"""Whether tags end up around the right word of a translation: names, which are the same word in both languages.

    REGARD_DATA=… python benchmarks/quality/tag_projection.py

REGARD_DATA has `tatoeba-en-tr`. Each sentence of its test set that has one of the names once gets a tag around it, and
is translated by the model that ships with regard. Translations without the name do not count.
"""

import re
from collections.abc import Iterator
from typing import Any

from benchmarks.common import log, write_results

import regard
from regard.data.registry import get_dataset
from regard.data.text.pairs import read_pairs
from regard.task.translation.markup import translate_markup

NAMES = ("Tom", "Mary", "John", "Boston", "Australia", "Jackson", "Paris", "Alice", "Jim", "Ken")
_TRANSLATED = {"Australia": "Avustralya"}


def main() -> None:
    pairs = read_pairs(get_dataset("tatoeba-en-tr", ["test.tsv.gz"]) / "test.tsv.gz")
    tagged = list(_tagged([pair.source for pair in pairs]))
    translator = regard.load("en-tr")
    found = translate_markup(translator, [text for _, text in tagged], translator.decode.only_best())
    print(f"Results written to {write_results('tag-projection', [log(_case(tagged, [each[0] for each in found]))])}")


def _tagged(sentences: list[str]) -> Iterator[tuple[str, str]]:
    for sentence in sentences:
        for name in NAMES:
            if len(re.findall(rf"\b{name}\b", sentence)) == 1 and sentence.strip(".!?") != name:
                yield name, re.sub(rf"\b{name}\b", f"<b>{name}</b>", sentence)


def _case(tagged: list[tuple[str, str]], found: list[str]) -> dict[str, Any]:
    exact = around = total = 0
    for (name, _), text in zip(tagged, found, strict=True):
        plain = re.sub("</?b>", "", text)
        word = _TRANSLATED.get(name, name)
        if len(re.findall(rf"\b{word}", plain)) != 1:
            continue
        total += 1
        (inner,) = re.findall("<b>(.*?)</b>", text)
        exact += re.fullmatch(rf"{word}(['’]\w+)?", inner) is not None
        around += word in inner
    return {"case": "names of tatoeba-en-tr, test", "tags": total, "exact": exact, "around": around}


if __name__ == "__main__":
    main()
