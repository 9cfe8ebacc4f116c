"""Translating HTML: every tag is there again, once and properly nested, and the text is that of its sentences."""

import html
import random
import re
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from regard.data.text.markup import Marker, MarkupRules
from regard.task.translation import markup, tag_projection
from regard.task.translation.markup import translate_markup
from regard.task.translation.pipeline import Translator
from regard.task.translation.result import TranslatedText, Translation
from regard.task.translation.tag_projection import TaggedSentence, place_tags
from tests.look.support import autoregressive_model, language_model

PIECES = """
<b>|</b>|<i>|</i>|<a href="x">|</a>|<img>|<br>|<p>|</p>|<code>a.b c</code>|<code>-</code>|<!--x-->|<!--|hello|world.|Foo
bar!|&amp;|&lt;b&gt;|<|&|U.S.|-|1.|<i/>|<b|<span translate="no">q <u>r</u></span>|你好。|再见。|</code>|<pre>|“Hi”
|<em></em>|</div>|<?php|?>|<script>x<y</script>""".strip().split("|")


def translator(**settings: Any) -> Translator:
    return autoregressive_model(**settings).pipeline  # type: ignore[return-value]


class Shuffler:
    """Translates by changing the order of words."""

    decode = None

    def translate_batch(self, texts: Sequence[str], decode: object, *, split: bool) -> list[TranslatedText]:
        assert not split
        assert all(text.strip() and "\n" not in text for text in texts)
        return [self._translated(text) for text in texts]

    def _translated(self, text: str) -> TranslatedText:
        words = text.split()
        orders = [" ".join(random.sample(words, len(words))) for _ in range(2)]
        found = tuple(Translation(each, 0.0, 0.0, (), ended=True) for each in orders)
        return TranslatedText(text, tuple(orders), ((text, found),))


def tags(text: str) -> list[str]:
    return sorted(re.findall(r"</?(?:b|i|a|p|u|em|span|img|br|code|div)\b[^<>]*>", text))


@pytest.mark.parametrize("projects", [True, False])
@pytest.mark.parametrize("rules", [MarkupRules(), MarkupRules(xml=True)], ids=["html", "xml"])
def test_no_tag_and_no_word_is_lost(projects: bool, rules: MarkupRules, monkeypatch: pytest.MonkeyPatch) -> None:
    def random_origins(_: object, pairs: Sequence[tuple[str, str]]) -> list[list[int]]:
        return [[random.randrange(-1, len(a)) for _ in tag_projection.WORD.finditer(b)] for a, b in pairs]

    monkeypatch.setattr(markup, "can_project", lambda _: projects)
    monkeypatch.setattr(tag_projection, "word_origins", random_origins)
    for seed in range(300):
        random.seed(seed)
        pieces = [random.choice(PIECES) + random.choice(["", " ", "\n"]) for _ in range(25)]
        page = "".join(pieces[: random.randrange(25)])
        for text in translate_markup(Shuffler(), [page], rules=rules)[0]:  # type: ignore[arg-type]
            assert tags(text) == tags(page)
            if not projects:  # else the words of kept contents take the place of those aligned with them
                assert sorted(re.findall(r"\w", html.unescape(text))) == sorted(re.findall(r"\w", html.unescape(page)))


def test_text_without_tags_is_translated_as_ever() -> None:
    model = translator()
    texts = ["the old cat ate a mouse. The old man sat by the sea", "red sun"]
    found = translate_markup(model, texts, model.decode.only_best())
    assert [html.unescape(each[0]) for each in found] == model.translate(texts)


def test_output_is_never_markup() -> None:
    model = SimpleNamespace(translate_batch=lambda texts, *_, **__: [
        TranslatedText(text, ("<script>",), ((text, (Translation("<script> & ", 0.0, 0.0, (), ended=True),)),))
        for text in texts
    ], decoder_model=language_model)  # fmt: skip
    assert translate_markup(model, ["<p>hello</p>"]) == [("<p>&lt;script&gt; &amp; </p>",)]  # type: ignore[arg-type]


def test_models_project_tags_by_attention() -> None:
    page = "<p>the <b>old</b> cat <img> ate <i>a mouse</i></p>"
    model = translator()
    (found,) = translate_markup(model, [page], model.decode)
    assert len(found) == 3
    for text in found:
        assert tags(text) == tags(page)


def test_models_without_attention_translate_pieces() -> None:
    model = translator(config=language_model(), translates=True)
    assert tags(translate_markup(model, ["the <b>old</b> cat"])[0][0]) == ["</b>", "<b>"]


def place(source: str, translation: str, origins: Sequence[str], *markers: Marker) -> str:
    """Tags placed where each word of the translation comes from the given word of the source."""
    offsets = [source.index(word) if word else -1 for word in origins]
    return place_tags(TaggedSentence(source, markers), translation, offsets)


def element(name: str, first: int, last: int) -> tuple[Marker, Marker]:
    return Marker("open", first, f"<{name}>", name), Marker("close", last, f"</{name}>", name)


def test_element_goes_around_the_words_that_come_from_it() -> None:
    found = place("see the cat now", "jetzt die Katze sehen.", ["now", "the", "cat", "see", ""], *element("b", 4, 11))
    assert found == "jetzt <b>die Katze</b> sehen."


def test_elements_may_change_their_order() -> None:
    markers = (*element("a", 0, 3), *element("b", 4, 7))
    assert place("red sun", "Sonne, rote", ["sun", "", "red"], *markers) == "<b>Sonne</b>, <a>rote</a>"


def test_element_within_another_stays_within() -> None:
    outer, inner = element("a", 0, 7), element("b", 4, 7)
    markers = (outer[0], *inner, outer[1])
    assert place("red sun up", "oben Sonne rot", ["up", "sun", "red"], *markers) == "oben <a><b>Sonne</b> rot</a>"


def test_contents_that_are_kept_replace_their_word() -> None:
    kept = Marker("fixed", 4, "<code>x &lt; 1</code>", "code", 7)
    assert place("use x_1 now", "jetzt x_1 nehmen", ["now", "x_1", "use"], kept) == "jetzt <code>x &lt; 1</code> nehmen"


def test_markup_without_words_stays_between_its_neighbors() -> None:
    image = Marker("empty", 6, "<img>", "img")
    assert place("press now.", "drücke jetzt.", ["press", "now", ""], image) == "drücke <img> jetzt."
    image = Marker("empty", 10, "<img>", "img")
    assert place("press now .", "drücke jetzt.", ["press", "now", ""], image) == "drücke jetzt <img>."
