"""The models of a server by their names, and replacing them while requests are being answered.

A model is loaded again when its folder changes, and takes the place of the old one once it is ready. Requests that have
begun keep the model they began with, which is closed when the last of them is finished. If the new one cannot be
loaded, the old one stays.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from regard.errors import UserError
from regard.run import find_model
from regard.serve.limits import Limits
from regard.serve.models.languages import Languages, parse_languages
from regard.serve.models.served_model import LoadOptions, ServedModel, load_served_model

CHECK_SECONDS = 2.0
"""How often folders are looked at."""
_STAMPED = ("run.json", "model.safetensors")
"""Files whose change means a new model. run.json is written last."""


class UnknownModelError(UserError):
    """No model of this server has this name, or can do this."""


@dataclass(frozen=True)
class ModelSource:
    """Where a model of the server comes from."""

    name: str
    path: str
    """A run folder, one of its checkpoints, or a pretrained model."""
    languages: Languages | None = None

    def stamp(self) -> tuple[tuple[int, int], ...]:
        """What changes when its files change."""
        folder = find_model(self.path)
        found = []
        for file in _STAMPED:
            try:
                status = (folder / file).stat()
            except OSError:  # it is being replaced
                continue
            found.append((status.st_mtime_ns, status.st_size))
        return tuple(found)


class ModelRegistry:
    """The models of a server. Finding one and replacing one may happen at any time, in any thread."""

    def __init__(
        self, sources: Sequence[ModelSource], limits: Limits, options: LoadOptions, log: Callable[[str], None]
    ) -> None:
        self.limits, self.options, self.log = limits, options, log
        self._sources = {source.name: source for source in sources}
        self._stamps = {source.name: source.stamp() for source in sources}
        self._models = {source.name: self._load(source) for source in sources}
        self._lock = threading.Lock()
        self._closed = threading.Event()

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(list(self._models.values()))

    def find(self, name: str | None, capability: str) -> ServedModel:
        """The model with a name, or without one the first that can do what is asked for."""
        able = [model for model in self if capability in model.capabilities]
        if name is None:
            if not able:
                raise UnknownModelError(f"No model of this server can {capability.replace('-', ' ')}.")
            return able[0]
        model = self._models.get(name)
        if model is None:
            known = ", ".join(each.name for each in able) or "none for this"
            raise UnknownModelError(f"There is no model {name[:100]!r} on this server; it has {known}.")
        if capability not in model.capabilities:
            raise UnknownModelError(
                f"The model {name} cannot {capability.replace('-', ' ')}; it can {' and '.join(model.capabilities)}."
            )
        return model

    def find_translator(self, source: str, target: str) -> ServedModel:
        """The first translator of a pair of languages."""
        for model in self:
            if model.languages == (source, target):
                return model
        pairs = ", ".join("-".join(each.languages) for each in self if each.languages is not None)
        raise UnknownModelError(
            f"No model of this server translates from {source[:20]!r} to {target[:20]!r}; it has {pairs or 'none'}."
        )

    def watch(self) -> None:
        """Look at the folders from now on, in a thread, and load models again that have changed."""
        threading.Thread(target=self._watch, name="regard-reload", daemon=True).start()

    def reload(self, *, changed_only: bool = False) -> None:
        """Load the models again: all of them, or those whose folder has changed."""
        with self._lock:
            for name, source in self._sources.items():
                stamp = source.stamp()
                if not stamp or (changed_only and stamp == self._stamps[name]):
                    continue
                self._stamps[name] = stamp
                try:
                    model = self._load(source)
                except Exception as error:  # also a defect: the old model must go on
                    self.log(f"{name} was not loaded again, and the old model goes on: {error}")
                    continue
                old, self._models[name] = self._models[name], model
                self.log(f"{name} was loaded again.")
                threading.Thread(target=_close_when_idle, args=(old,), daemon=True).start()

    def close(self) -> None:
        """Stop everything."""
        self._closed.set()
        for model in self:
            model.close()

    def _load(self, source: ModelSource) -> ServedModel:
        return load_served_model(source.name, source.path, self.limits, self.options, self.log, source.languages)

    def _watch(self) -> None:
        while not self._closed.wait(CHECK_SECONDS):
            self.reload(changed_only=True)


def parse_sources(models: Sequence[str], languages: Sequence[str] = ()) -> list[ModelSource]:
    """Models as they are named on the command line: folders or names, by default with their own names.

        runs/quick          the model `quick`
        german=runs/quick   the model `german`

    `languages` are pairs for some of them: `quick=en:de`.
    """
    named = [_parse_source(each) for each in models]
    pairs: dict[str, Languages] = {}
    for each in languages:
        name, _, pair = each.rpartition("=")
        if name not in [source.name for source in named]:
            raise UserError(f"--languages {each}: there is no model {name!r}; write MODEL=SOURCE:TARGET.")
        pairs[name] = parse_languages(pair)
    for number, source in enumerate(named):
        if source.name in [other.name for other in named[:number]]:
            raise UserError(f"Two models have the name {source.name!r}; give one another name: NAME={source.path}.")
    return [ModelSource(source.name, source.path, pairs.get(source.name)) for source in named]


def _parse_source(argument: str) -> ModelSource:
    name, sign, path = argument.partition("=")
    if sign and not Path(argument).exists():
        return ModelSource(_checked(name, argument), path)
    return ModelSource(_checked(Path(argument).resolve().name, argument), argument)


def _checked(name: str, argument: str) -> str:
    if not name or not all(sign.isalnum() or sign in "-_.@" for sign in name):
        raise UserError(f"{argument}: {name!r} cannot be the name of a model; give it one, as in NAME={argument}.")
    return name


def _close_when_idle(model: ServedModel) -> None:
    """Close a model that no new request finds, once its last request is finished."""
    while True:
        time.sleep(0.1)  # also for requests that have found it, and have not begun
        if model.idle:
            model.close()
            return
