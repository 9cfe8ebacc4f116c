"""The English names of languages, by their ISO 639 codes."""

_NAMES = """af Afrikaans|ar Arabic|az Azerbaijani|be Belarusian|bg Bulgarian|bn Bengali|bs Bosnian|ca Catalan|cs Czech
|cy Welsh|da Danish|de German|el Greek|en English|eo Esperanto|es Spanish|et Estonian|eu Basque|fa Persian|fi Finnish
|fr French|ga Irish|gl Galician|gu Gujarati|he Hebrew|hi Hindi|hr Croatian|hu Hungarian|hy Armenian|id Indonesian
|is Icelandic|it Italian|ja Japanese|ka Georgian|kk Kazakh|km Khmer|kn Kannada|ko Korean|ku Kurdish|ky Kyrgyz|la Latin
|lb Luxembourgish|lo Lao|lt Lithuanian|lv Latvian|mk Macedonian|ml Malayalam|mn Mongolian|mr Marathi|ms Malay|mt Maltese
|my Burmese|nb Norwegian Bokmål|ne Nepali|nl Dutch|nn Norwegian Nynorsk|no Norwegian|pa Punjabi|pl Polish|ps Pashto
|pt Portuguese|ro Romanian|ru Russian|si Sinhala|sk Slovak|sl Slovenian|so Somali|sq Albanian|sr Serbian|sv Swedish
|sw Swahili|ta Tamil|te Telugu|tg Tajik|th Thai|tk Turkmen|tl Tagalog|tr Turkish|tt Tatar|ug Uyghur|uk Ukrainian|ur Urdu
|uz Uzbek|vi Vietnamese|xh Xhosa|yi Yiddish|yo Yoruba|zh Chinese|zu Zulu"""
_ALIASES = {"zh-cn": "zh-hans", "zh-sg": "zh-hans", "zh-tw": "zh-hant", "zh-hk": "zh-hant", "pb": "pt-br", "iw": "he"}
NAMES = dict(entry.strip().split(" ", 1) for entry in _NAMES.split("|"))


def language_name(code: str) -> str:
    """The name of a language: `German` for `de`, and for `de_AT` as well; the code itself if it is not known."""
    return NAMES.get(base_language(code), code)


def base_language(code: str) -> str:
    """The language without its region or script: `en` for `EN-US`."""
    return code.replace("_", "-").partition("-")[0].lower()


def same_language(code: str, other: str) -> bool:
    """Whether two codes mean the same: `zh_Hans`, `zh-hans` and `zh-CN`."""
    return _canonical(code) == _canonical(other)


def _canonical(code: str) -> str:
    code = code.replace("_", "-").lower()
    return _ALIASES.get(code, code)
