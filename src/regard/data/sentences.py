"""A text as sentences, and the translated sentences as a text again.

A translation model learns from single sentences, and people give it paragraphs and documents. `split_sentences` finds
the sentences; everything between them (line breaks, indentation, bullets, list numbers, spaces, lines without a word)
is layout, which is kept as it is. A sentence is a stretch of the text, layout is what lies between two of them: so
`split.join(split.sentences)` is the text, whatever it was.

A line break always ends a sentence. Elsewhere one ends after . ! ? … where something follows that looks like a
beginning. Where that is in doubt (after "U.S." or "5.", say) the text is left together: two sentences in one are
translated well enough, half a sentence is not. The rules are those of English, German, French and Turkish, all at
once, as nobody says which language comes. Each decision looks at a few characters, so the time is linear.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from regard.errors import UserError


@dataclass(frozen=True)
class Piece:
    """A sentence without white space around it, and the layout that stands before it."""

    before: str
    text: str


@dataclass(frozen=True)
class Split:
    """A text in pieces; `after` is the layout behind the last one."""

    pieces: tuple[Piece, ...]
    after: str

    @property
    def sentences(self) -> tuple[str, ...]:
        return tuple(piece.text for piece in self.pieces)

    def join(self, translations: Sequence[str]) -> str:
        """The layout with these in place of the sentences.

        Chinese and Japanese have no space between sentences; where a translation needs one, it gets one.
        """
        if len(translations) != len(self.pieces):
            raise ValueError(f"{len(translations)} translations were given for {len(self.pieces)} sentences")
        parts: list[str] = []
        for number, (piece, new) in enumerate(zip(self.pieces, translations, strict=True)):
            touching = number > 0 and not piece.before and self.pieces[number - 1].text[-1] in _WIDE + _CLOSING
            if touching and translations[number - 1][-1:] not in _WIDE + _CLOSING:
                parts.append(" ")
            parts += piece.before, new
        return "".join(parts) + self.after


def split_sentences(text: str, *, longest: int | None = None) -> Split:
    """The sentences of a text. One of more than `longest` characters is cut where that does the least harm."""
    if longest is not None and longest < 1:
        raise UserError(f"A sentence cannot be cut to {longest} characters; give at least 1.")
    pieces, done = [], 0
    for line in _LINE.finditer(text):
        for whole in _sentences(text, _after_bullets(text, *line.span()), line.start() + len(line[0].rstrip())):
            for first, last in _parts(text, *whole, longest) if longest else (whole,):
                if _WORD_CHARACTER.search(text, first, last):  # "---" and "* * *" are layout
                    pieces.append(Piece(text[done:first], text[first:last]))
                    done = last
    return Split(tuple(pieces), text[done:])


_LINE = re.compile(r"[^\r\n]+")
_WORD_CHARACTER = re.compile(r"[^\W_]")

_WIDE = "。！？｡"  # end marks that need no space after them
_CLOSING = "\"'”“’‘»«›‹)]}」』）】》"
_OPENING = "\"'“„‚‘«‹»›([{¿¡「『（【《–—-"

# A run of end marks with the quotes and brackets that close after it, then white space. French has a space before its
# closing », which is told from a German opening » by what follows. Every part is optional after the first character,
# so a match never fails halfway and no run of signs is gone through twice.
_END = re.compile(rf"([.!?…؟۔।{_WIDE}]+(?:[{re.escape(_CLOSING)}]|[ \xa0\u202f]»(?!\w))*)(\s*)")

# What may stand before the first letter of a sentence.
_BEFORE_FIRST = re.compile(rf"(?:[{re.escape(_OPENING)}][ \xa0\u202f]?){{0,4}}")

# The word before a dot: letters with dots and perhaps spaces between them ("z. B", "J. R. R", "p.ex"), or a word or
# number in one ("don't", "19:45"), without a French article ("l'U.S").
_LAST_WORD = re.compile(r"(?:\b[^\W\d_]\.\s?)+[^\W\d_]{1,2}$|(?![ldLD]['’])[^\W_]+(?:[.,:/'’][^\W_]+)*$")
_NEXT_WORD = re.compile(r"\w{1,20}")
_REACH = 12  # characters before a dot that are looked at: more than any abbreviation has

_BULLETS = re.compile(r"\s*(?:(?:[-*+•‣◦·–—>]|#{1,6}|\(?(?:\d{1,3}|[a-z])\))\s+)*")
_LIST_NUMBER = re.compile(r"\d{1,3}\.\s+")

# An initial, letters with dots between them, an ordinal, a Roman number.
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
    """Where a line's first sentence begins, after indentation, bullets and list numbers.

    "3. Mai" and "3. sınıf" begin with an ordinal, which is no list number.
    """
    bullets = _BULLETS.match(text, first, last)
    first = bullets.end() if bullets else first
    number = _LIST_NUMBER.match(text, first, last)
    if number and number.end() < last and _begins(text, number.end()) and _word(text, number.end()) not in _MONTHS:
        return number.end()
    return first


def _sentences(text: str, first: int, last: int) -> Iterator[tuple[int, int]]:
    """Where the sentences of a stretch without line breaks begin and end."""
    for mark in _END.finditer(text, first, last):
        if mark.end() < last and _is_end(text, first, mark):
            yield first, mark.end(1)
            first = mark.end()
    if first < last:
        yield first, last


def _is_end(text: str, first: int, mark: re.Match[str]) -> bool:
    """Whether a sentence that began at `first` is over at this mark."""
    signs, following = mark[1], mark.end()
    if signs[-1] in _WIDE:
        return True
    if not mark[2]:  # 「はい。」と言った goes on, 「はい。」「いいえ。」 does not
        return any(sign in _WIDE for sign in signs) and text[following] in _OPENING
    if not _begins(text, following):
        return False
    if signs[:2].rstrip(_CLOSING) != ".":
        return True
    before = _LAST_WORD.search(text[max(first, mark.start() - _REACH) : mark.start()])
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


def _begins(text: str, place: int) -> bool:
    """Whether a sentence may begin here: a capital, a digit or a letter of a script that has no capitals."""
    opening = _BEFORE_FIRST.match(text, place)
    sign = text[opening.end() : opening.end() + 1] if opening else ""
    return sign.isalnum() and not sign.islower()


def _word(text: str, place: int) -> str:
    opening = _BEFORE_FIRST.match(text, place)
    word = _NEXT_WORD.match(text, opening.end() if opening else place)
    return word[0] if word else ""


# Where a long sentence is cut, the best first.
_CUTS = tuple(re.compile(cut) for cut in (r";(?=\s)|；", r":(?=\s)|：", r",(?=\s)|[，、]", r"\s[–—-](?=\s)|—"))
_SPACE = re.compile(r"\s+")


def _parts(text: str, first: int, last: int, longest: int) -> Iterator[tuple[int, int]]:
    """A sentence in parts of at most `longest` characters: cut late at a mark, else at white space, else anywhere."""
    while last - first > longest:
        late, full = first + longest // 2, first + longest
        for cut in _CUTS:
            ends = [found.end() for found in cut.finditer(text, late, full + 1) if found.end() <= full]
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
