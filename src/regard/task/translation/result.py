"""What a translation gives besides its text: the sentences, n-best lists, scores and probabilities."""

from dataclasses import dataclass


@dataclass(frozen=True, repr=False)
class Translation:
    """One translation of a sentence. `score` is what it was ranked by, `logprob` that of the model."""

    text: str
    score: float
    logprob: float
    tokens: tuple[int, ...]
    """The ids of its tokens, without the end token."""
    ended: bool
    """Whether it ends with the end token, or was cut at the maximum length."""
    token_logprobs: tuple[float, ...] = ()
    """The log-probability of each token, and of the end token if there is one."""
    alternatives: tuple[tuple[tuple[int, float], ...], ...] = ()
    """If requested, the most probable tokens of each step with their log-probabilities."""

    def __repr__(self) -> str:
        return f"Translation({self.text!r}, score={self.score:.4f}, logprob={self.logprob:.4f})"


@dataclass(frozen=True, repr=False)
class TranslatedText:
    """A text and its translations, best first: `translator.translate(text, details=True)`.

        found = translator.translate("See you soon.", nbest=3, details=True)
        found.text                         # the best translation
        for source, translations in found.sentences:
            translations[0].score, translations[0].token_logprobs

    Texts are split into sentences, and each sentence has its own list of translations.
    """

    source: str
    texts: tuple[str, ...]
    """The whole text in as many translations as were asked for, best first. If one of its sentences has fewer, that
    sentence's last one is repeated."""
    sentences: tuple[tuple[str, tuple[Translation, ...]], ...]
    """Each sentence of the text with its translations, best first."""

    @property
    def text(self) -> str:
        """The best translation."""
        return self.texts[0]

    def __repr__(self) -> str:
        more = f", {len(self.texts)} translations" if len(self.texts) > 1 else ""
        sentences = "1 sentence" if len(self.sentences) == 1 else f"{len(self.sentences)} sentences"
        return f"TranslatedText({self.text!r}, {sentences}{more})"
