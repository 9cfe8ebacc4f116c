"""The base of all pipelines: a loaded model together with what it takes to use it on text or images."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

from regard.errors import UserError
from regard.task.registry import find_task

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from torch import Tensor

    from regard.run import LoadedModel
    from regard.run.folder import Ids
    from regard.task.contextual_vectors.model import ContextModel, Layer, Pooling, Sentence, Text


class Pipeline:
    """A model that is ready to use. Each task has its own: `Translator`, `TextGenerator`, `Parser` …

    This base class is what `regard.load` returns for a model that belongs to no task, such as one without a tokenizer.
    """

    tracer: ClassVar[Callable[..., Any] | None] = None
    """What `trace` calls. The top of the package sets it, because tracing (`regard.look`) is built on pipelines."""

    def __init__(self, loaded: "LoadedModel") -> None:
        reason = self.unsupported_reason(loaded)
        if reason is not None:
            raise UserError(reason if loaded.path is None else f"{loaded.path}: {reason}")
        self.loaded = loaded

    def __repr__(self) -> str:
        from regard.cost.format import si_prefixed
        from regard.model import count_parameters

        name = "" if self.path is None else f"{self.path.name!r}, "
        size = si_prefixed(count_parameters(self.model)).strip()
        return f"{type(self).__name__}({name}{size} parameters, {self.model.device})"

    @classmethod
    def load(cls, name: "str | Path", device: "torch.device | str" = "cpu") -> Self:
        """Load a run folder, one of its checkpoints (RUN@best), or a pretrained model. It computes in float32.

            translator = regard.Translator.load("en-tr")

        `regard.load` does the same and finds the class by itself. `device` is "cpu", "cuda", "mps", or "auto" for a GPU
        if there is one.
        """
        from regard.kernels.dispatch import select_device
        from regard.run import load_model

        device = select_device(device)
        loaded = load_model(name)
        reason = cls.unsupported_reason(loaded)
        if reason is not None:
            other = find_task(loaded)
            hint = f" Use `regard {other.commands[0]}` with it." if other is not None and other.commands else ""
            raise UserError(f"{loaded.path}: {reason}{hint}")
        loaded.model.to(device).float()  # moved in the dtype of the file: no float32 copy on the host
        return cls(loaded).to(device)

    @classmethod
    def unsupported_reason(cls, loaded: "LoadedModel") -> str | None:
        """Why this pipeline cannot use a model, as a sentence; None if it can."""
        return None

    @property
    def model(self) -> Any:
        """The PyTorch module, in evaluation mode."""
        return self.loaded.model

    @property
    def config(self) -> Any:
        """The config that the model was built from."""
        return self.loaded.config

    @property
    def path(self) -> "Path | None":
        """The run folder that the model was loaded from."""
        return self.loaded.path

    def to(self, device: "torch.device | str") -> Self:
        """Move the model to a device."""
        self.model.to(device)
        return self

    def logits(self, *ids: "Ids", **lengths: Any) -> "Tensor":
        """The model's logits for rows of token ids: see `regard.run.LoadedModel.logits`."""
        return self.loaded.logits(*ids, **lengths)

    @cached_property
    def context_model(self) -> "ContextModel":
        """The model as a reader of texts, which vectors of words in their sentence come from."""
        from regard.task.contextual_vectors.model import ContextModel

        return ContextModel(self.loaded)

    def contextual_vectors(
        self,
        sentences: "str | Sequence[Sentence]",
        *,
        layer: "Layer" = None,
        pooling: "Pooling" = "mean",
        progress: "Callable[[int], None] | None" = None,
    ) -> Any:
        """The vectors of words in their sentence: `TextVectors(words, vectors)`; of a list of sentences, a list.

            bank = model.contextual_vectors("We went to the river bank.").vectors[5]
            model.contextual_vectors(["A bank.", ["Two", "banks"]], layer=1, pooling="first")

        Sentences are split into words as in the Penn Treebank, unless they are lists of words. `layer` 0 is the
        embeddings; the last layer is the default; "all" stacks them. A word of several tokens has their mean, or the
        vector of the "first" or "last" of them. In a language model a word only depends on those before it.
        `progress` is called with the number of finished sentences.
        """
        from regard.task.contextual_vectors.vectors import contextual_vectors

        given = [sentences] if isinstance(sentences, str) else sentences
        found = contextual_vectors(self, given, layer=layer, pooling=pooling, progress=progress)
        return found[0] if isinstance(sentences, str) else found

    def sentence_vectors(
        self, texts: "str | Sequence[Text]", *, layer: int | None = None, truncate: bool = False
    ) -> "Tensor":
        """A unit vector for a text, (width,); for a list of texts, (texts, width). A dot product is a cosine.

        A text of a list may also be given as its token ids.

        It is the mean over all tokens, as in Sentence-BERT; for static vectors, over the words that have one. Texts
        that are longer than the model can read are an error, unless `truncate` is set.
        """
        from regard.task.contextual_vectors.vectors import sentence_vectors

        given = [texts] if isinstance(texts, str) else texts
        found = sentence_vectors(self, given, layer=layer, truncate=truncate)
        return found[0] if isinstance(texts, str) else found

    def trace(self, text: Any, **settings: Any) -> Any:
        """Record attention, probabilities and search while the model processes a text or an image: `regard.trace`."""
        tracer = type(self).tracer
        assert tracer is not None, "`import regard` sets it"
        return tracer(self, text, **settings)
