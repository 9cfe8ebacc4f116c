"""The pipeline: a line in, its reversal out."""

from regard.data.tokenizers.tokenizer import TextTokenizer
from regard.decode import DecodeConfig
from regard.run import LoadedModel
from regard.task.pipeline import Pipeline
from regard.task.translation.pipeline import LineTranslator


class Reverser(Pipeline):
    """An encoder–decoder with a tokenizer of characters."""

    @classmethod
    def unsupported_reason(cls, loaded: LoadedModel) -> str | None:
        return None if loaded.origin.get("task") == "reversal" else "This model was not trained to reverse lines."

    def reverse(self, line: str) -> str:
        tokenizer = TextTokenizer(self.loaded.tokenizer, **self.config.special_tokens.plain())
        ((best,),) = LineTranslator(self.model, tokenizer, tokenizer).translate([line], DecodeConfig(beam_size=1))
        return best.text
