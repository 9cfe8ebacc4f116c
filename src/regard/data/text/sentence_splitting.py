"""Sentence splitting, and joining translated sentences to a text again.

A translation model is trained on single sentences, but people translate paragraphs and documents. `split_sentences`
finds the sentences; everything between them (line breaks, indentation, bullets, list numbers, spaces, lines without
words) is layout, which is kept as it is. A sentence is a span of the text, and layout is what lies between two spans,
so `split.join(split.sentences)` is the original text.

A line break always ends a sentence. Otherwise one ends after . ! ? … if what follows looks like the start of another.
In doubt (after "U.S." or "5.", for example) the text is not split: two sentences at once are translated well enough,
half a sentence is not. The rules are those of English, German, French and Turkish together, because the language is not
known. Each decision looks at a few characters, so the time is linear.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from regard.errors import UserError


@dataclass(frozen=True)
class Segment:
    """A sentence without surrounding white space, and the layout before it."""

    layout: str
    text: str


@dataclass(frozen=True)
class SplitText:
    """A text as sentences and layout; `trailing` is the layout after the last sentence."""

    segments: tuple[Segment, ...]
    trailing: str

    @property
    def sentences(self) -> tuple[str, ...]:
        return tuple(segment.text for segment in self.segments)

    def join(self, translations: Sequence[str]) -> str:
        """The text with its sentences replaced by translations.

        Chinese and Japanese have no space between sentences; one is inserted if the translation needs it.
        """
        if len(translations) != len(self.segments):
            raise ValueError(f"{len(translations)} translations were given for {len(self.segments)} sentences")
        parts: list[str] = []
        for number, (segment, translation) in enumerate(zip(self.segments, translations, strict=True)):
            if number > 0 and not segment.layout:
                parts.append(space_between(self.segments[number - 1].text, translations[number - 1]))
            parts += segment.layout, translation
        return "".join(parts) + self.trailing


def split_sentences(text: str, *, max_characters: int | None = None) -> SplitText:
    """The sentences of a text. A sentence of more than `max_characters` is cut where that does the least harm."""
    if max_characters is not None and max_characters < 1:
        raise UserError(f"A sentence cannot be cut to {max_characters} characters; give at least 1.")
    segments, done = [], 0
    for line in _LINE.finditer(text):
        for span in _sentences(text, _after_bullets(text, *line.span()), line.start() + len(line[0].rstrip())):
            for first, last in _cut(text, *span, max_characters) if max_characters else (span,):
                if _WORD_CHARACTER.search(text, first, last):  # "---" and "* * *" are layout
                    segments.append(Segment(text[done:first], text[first:last]))
                    done = last
    return SplitText(tuple(segments), text[done:])


def space_between(sentence: str, translation: str) -> str:
    """The space after a translated sentence that the next one followed without any."""
    return " " if sentence[-1] in _WIDE + _CLOSING and translation[-1:] not in _WIDE + _CLOSING else ""


def split_lines(text: str) -> SplitText:
    """The lines of a text as its sentences; blank ones are layout."""
    segments, done = [], 0
    for line in _LINE.finditer(text):
        if line[0].strip():
            segments.append(Segment(text[done : line.start()], line[0]))
            done = line.end()
    return SplitText(tuple(segments), text[done:])


_LINE = re.compile(r"[^\r\n]+")
_WORD_CHARACTER = re.compile(r"[^\W_]")

_WIDE = "。！？｡"  # end marks that need no space after them
_CLOSING = "\"'”“’‘»«›‹)]}」』）】》"
_OPENING = "\"'“„‚‘«‹»›([{¿¡「『（【《–—-"

# A run of end marks with closing quotes and brackets, then white space. French has a space before its closing », which
# is distinguished from a German opening » by what follows. Everything after the first character is optional, so a match
# never fails halfway, and no run of marks is scanned twice.
_END = re.compile(rf"([.!?…؟۔।{_WIDE}]+(?:[{re.escape(_CLOSING)}]|[ \xa0\u202f]»(?!\w))*)(\s*)")

# What may come before the first letter of a sentence.
_BEFORE_FIRST = re.compile(rf"(?:[{re.escape(_OPENING)}][ \xa0\u202f]?){{0,4}}")

# The word before a period: letters separated by periods and perhaps spaces ("z. B", "J. R. R", "p.ex"), or a word or
# number ("don't", "19:45"), without a French article ("l'U.S").
_LAST_WORD = re.compile(r"(?:\b[^\W\d_]\.\s?)+[^\W\d_]{1,2}$|(?![ldLD]['’])[^\W_]+(?:[.,:/'’][^\W_]+)*$")
_NEXT_WORD = re.compile(r"\w{1,20}")
_MAX_ABBREVIATION = 12  # characters before a period that are examined

_BULLETS = re.compile(r"\s*(?:(?:[-*+•‣◦·–—>]|#{1,6}|\(?(?:\d{1,3}|[a-z])\))\s+)*")
_LIST_NUMBER = re.compile(r"\d{1,3}\.\s+")

# An initial, letters separated by periods, an ordinal, a Roman numeral.
_SHORT = re.compile(r"[^\W\d_](?:\.[^\W\d_]{1,2})*|\d{1,2}|[IVXLC]+")


def _words(words: str) -> frozenset[str]:
    return frozenset(words.split())


_NEVER_LAST = _words(
    """Mr Mrs Ms Dr Prof St Gen Col Lt Sgt Capt Rev Hon Gov Sen Rep Messrs Mt Ft e.g i.e cf viz approx Ph
    bzw ca vgl evtl ggf inkl sog z.B d.h u.a z.T u.U i.d.R v.a Nr Str Hr Hrn Fr Frl Dipl Ing Mio Mrd Tel Bd geb gest
    M MM Mme Mmes Mlle Mgr Ste p.ex ex env Sn Doç Yrd Av Müh Hz bkz Alb"""
)
_SELDOM_LAST = _words("etc usw vb vs vd al Jr Sr Inc Ltd Co Corp Bros Ph.D Chr Jh Jhd Mah Cad Sok Apt yy Std")
_BEFORE_NUMBERS = _words(
    """no nos nr pp fig figs abb tab art kap chap ch vol sec abs
    jan feb mar apr jun jul aug sep sept oct nov dec okt dez janv févr avr juil"""
)
_MONTHS = _words(
    """Januar Jänner Februar März April Mai Juni Juli August September Oktober November Dezember
    Ocak Şubat Mart Nisan Mayıs Haziran Temmuz Ağustos Eylül Ekim Kasım Aralık"""
)
# Words that begin a sentence far more often than they follow an abbreviation.
_FIRST_WORDS = _words(
    """The This That These There He She It We You They But And In On At After When If However What His Her Then
    Der Die Das Er Sie Es Wir Ihr Ich Dann Danach Aber Und Doch Dies Diese Dieser Heute Wenn Als Auch
    Le La Les Il Elle Ils Elles Nous Vous Ce Cette Mais Puis Et Un Une Je
    Bu Şu Ama Ancak Fakat Biz Ben Sonra Ve Onlar Bunlar Bir"""
)


def _after_bullets(text: str, first: int, last: int) -> int:
    """The offset of a line's first sentence, after indentation, bullets and list numbers.

    "3. Mai" and "3. sınıf" begin with an ordinal, which is not a list number.
    """
    bullets = _BULLETS.match(text, first, last)
    first = bullets.end() if bullets else first
    number = _LIST_NUMBER.match(text, first, last)
    if number and number.end() < last and _begins(text, number.end()) and _word(text, number.end()) not in _MONTHS:
        return number.end()
    return first


def _sentences(text: str, first: int, last: int) -> Iterator[tuple[int, int]]:
    """The spans of the sentences in a span without line breaks."""
    for mark in _END.finditer(text, first, last):
        if mark.end() < last and _is_end(text, first, mark):
            yield first, mark.end(1)
            first = mark.end()
    if first < last:
        yield first, last


def _is_end(text: str, first: int, mark: re.Match[str]) -> bool:
    """Whether a sentence that began at `first` ends at this mark."""
    marks, following = mark[1], mark.end()
    if marks[-1] in _WIDE:
        return True
    if not mark[2]:  # 「はい。」と言った continues, 「はい。」「いいえ。」 does not
        return any(character in _WIDE for character in marks) and text[following] in _OPENING
    if not _begins(text, following):
        return False
    if marks[:2].rstrip(_CLOSING) != ".":
        return True
    before = _LAST_WORD.search(text[max(first, mark.start() - _MAX_ABBREVIATION) : mark.start()])
    if before is None:
        return True
    word = "".join(before[0].split())
    if word in _NEVER_LAST or word[0].lower() + word[1:] in _NEVER_LAST:
        return False
    if word.lower() in _BEFORE_NUMBERS and text[following].isdigit():
        return False
    if word in _SELDOM_LAST or _SHORT.fullmatch(word):
        return _word(text, following) in _FIRST_WORDS
    return True


def _begins(text: str, offset: int) -> bool:
    """Whether a sentence may begin here: with a capital, a digit or a letter of a script without capitals."""
    opening = _BEFORE_FIRST.match(text, offset)
    first = text[opening.end() : opening.end() + 1] if opening else ""
    return first.isalnum() and not first.islower()


def _word(text: str, offset: int) -> str:
    opening = _BEFORE_FIRST.match(text, offset)
    word = _NEXT_WORD.match(text, opening.end() if opening else offset)
    return word[0] if word else ""


# Where to cut a long sentence, the best first.
_CUTS = tuple(re.compile(cut) for cut in (r";(?=\s)|；", r":(?=\s)|：", r",(?=\s)|[，、]", r"\s[–—-](?=\s)|—"))
_SPACE = re.compile(r"\s+")


def _cut(text: str, first: int, last: int, max_characters: int) -> Iterator[tuple[int, int]]:
    """A sentence in parts of at most `max_characters`: cut at a late punctuation mark, else at white space, else
    anywhere."""
    while last - first > max_characters:
        middle, full = first + max_characters // 2, first + max_characters
        for cut in _CUTS:
            ends = [found.end() for found in cut.finditer(text, middle, full + 1) if found.end() <= full]
            if ends:
                end = ends[-1]
                break
        else:
            spaces = [found.start() for found in _SPACE.finditer(text, first, full + 1)]
            end = spaces[-1] if spaces else full
        yield first, end
        space = _SPACE.match(text, end, last)
        first = space.end() if space else end
    yield first, last
