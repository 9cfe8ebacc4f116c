"""Source sentences as the prompts of a language model that was trained to translate."""

from collections.abc import Sequence

from regard.data.tokenizers.tokenizer import TextTokenizer
from regard.model import CausalLM


class PromptTokenizer(TextTokenizer):
    """Turns a source sentence into the prompt of a language model: its ids, the end and the start of the target."""

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        assert self.eos is not None
        assert self.bos is not None
        return [[*ids, self.eos, self.bos] for ids in super().encode_batch(texts)]


def source_tokenizer_for(model: object, tokenizer: TextTokenizer) -> TextTokenizer:
    """The tokenizer of source sentences: for a language model, one that makes prompts."""
    if not isinstance(model, CausalLM):
        return tokenizer
    return PromptTokenizer(tokenizer.tokenizer, pad=tokenizer.pad, bos=tokenizer.bos, eos=tokenizer.eos)
