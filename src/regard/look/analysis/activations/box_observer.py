"""Observing a forward pass box by box: hooks on the modules of the model diagram.

Most boxes are one module, whose forward hooks say when it starts and what leaves it. Four are not:

- The token embedding is the lookup and its scale; what leaves it is what enters the module that adds positions.
- A positional encoding is a module whose method `encode` is called instead of the module itself.
- What leaves the head is what leaves the model: with tied weights the head has no module of its own.
- The source embedding of a model with one table for both sides is the first call of that table.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from regard.attention.latent import LatentKVProjection
from regard.attention.multi_head import KVProjection
from regard.attention.positions.absolute import Position
from regard.look.analysis.diagram_box import all_boxes
from regard.look.schema import ModuleBox
from regard.model.embedding import EmbeddingLayer, TokenEmbedding
from regard.model.vision_transformer import Grid, PatchEmbedding

LOOKUP = "lookup"
"""The name under which an embedding table starts, before it is known for which side."""


class BoxObserver(Protocol):
    """Is told when boxes start and what leaves them. A module may run several times in a pass, once for each token."""

    def start(self, name: str) -> None:
        """A box starts, or the lookup of an embedding."""

    def leave(self, path: str, output: Tensor, since: str | None = None) -> None:
        """A tensor leaves a box, which started as `since`, or under its own path.  # (batch, tokens, width)

        `since` is "" for what happens after everything else has left.
        """


@contextmanager
def observe_boxes(model: nn.Module, root: ModuleBox, observer: BoxObserver) -> Iterator[None]:
    """Report the passes within the block."""
    modules = dict(model.named_modules())
    paths = [box.path for box in all_boxes(root)]
    with ExitStack() as stack:
        for path in paths:
            module = modules.get(path.removesuffix(".module"))
            if module is None or path in ("", "head") or isinstance(module, nn.ModuleList):
                continue
            if isinstance(module, EmbeddingLayer):
                _watch_embedding(stack, module, path, observer)
            elif isinstance(module, Position):
                stack.enter_context(_encoding_watched(module, path, observer))
            elif isinstance(module, TokenEmbedding) and path == "embed_tokens" and "source_embedding" in paths:
                _watch(stack, module, _FirstCall(observer), path)
            else:
                _watch(stack, module, observer, path)
        _watch_model(stack, model, paths, modules, observer)
        yield


def _watch(stack: ExitStack, module: nn.Module, observer: BoxObserver, path: str) -> None:
    def start(module: nn.Module, inputs: Any) -> None:
        observer.start(path)

    def leave(module: nn.Module, inputs: Any, output: Any) -> None:
        tensor = _find_tensor(module, output)
        if tensor is not None:
            observer.leave(path, tensor)

    _hook(stack, module.register_forward_pre_hook(start), module.register_forward_hook(leave))


def _watch_embedding(stack: ExitStack, layer: EmbeddingLayer, path: str, observer: BoxObserver) -> None:
    def leave(module: nn.Module, inputs: Any) -> None:
        observer.leave(path, inputs[0] * layer.scale, LOOKUP)

    _hook(stack, layer.register_forward_pre_hook(leave))


@contextmanager
def _encoding_watched(position: Position, path: str, observer: BoxObserver) -> Iterator[None]:
    encode: Callable[..., Tensor] = position.encode

    def observed(*args: Any, **kwargs: Any) -> Tensor:
        observer.start(path)
        encoding = encode(*args, **kwargs)
        observer.leave(path, encoding if encoding.dim() > 2 else encoding[None])
        return encoding

    position.__dict__["encode"] = observed
    try:
        yield
    finally:
        del position.__dict__["encode"]


def _watch_model(
    stack: ExitStack, model: nn.Module, paths: Iterable[str], modules: dict[str, nn.Module], observer: BoxObserver
) -> None:
    heads = [path for path in paths if path in ("lm_head", "head")]
    own = [path for path in heads if path == "lm_head" and not isinstance(modules.get(path), TokenEmbedding | None)]

    def start(module: nn.Module, inputs: Any) -> None:
        observer.start("")

    def leave(module: nn.Module, inputs: Any, output: Any) -> None:
        for path in heads:
            if path not in own:
                observer.leave(path, output, since="")
        observer.leave("", output)

    _hook(stack, model.register_forward_pre_hook(start), model.register_forward_hook(leave))
    if any(isinstance(module, EmbeddingLayer) for module in modules.values()):
        for table in {modules[name] for name in ("embed_tokens", "source_embed_tokens") if name in modules}:
            _hook(stack, table.register_forward_pre_hook(lambda module, inputs: observer.start(LOOKUP)))


class _FirstCall:
    """Passes the first call of a shared embedding table on as the source embedding."""

    def __init__(self, observer: BoxObserver) -> None:
        self.observer = observer
        self.path = "source_embedding"

    def start(self, name: str) -> None:
        self.observer.start(self.path)

    def leave(self, path: str, output: Tensor, since: str | None = None) -> None:
        self.observer.leave(self.path, output)
        self.path = path


def _find_tensor(module: nn.Module, output: Any) -> Tensor | None:
    """The tensor that leaves a module, or the first of several.  # (batch, tokens, width) of most"""
    if isinstance(module, Grid):
        return cast(Tensor, output).flatten(0, 1)[None]  # (rows, columns, width)
    if isinstance(module, PatchEmbedding):
        return cast(Tensor, output).flatten(1, 2)  # (batch, rows, columns, width)
    if isinstance(module, KVProjection | LatentKVProjection):  # keys beside values, all heads side by side
        return torch.cat([each.transpose(1, 2).flatten(2) for each in output], dim=-1)
    if isinstance(output, Tensor):
        return output
    if isinstance(output, tuple | list):
        return next((found for each in output if (found := _find_tensor(module, each)) is not None), None)
    return None


def _hook(stack: ExitStack, *handles: Any) -> None:
    for handle in handles:
        stack.callback(handle.remove)
