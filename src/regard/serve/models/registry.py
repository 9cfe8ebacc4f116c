"""The models of a server by their names, and replacing them while requests are being answered.

A model is loaded again when its files change, and takes the place of the old one once it is ready. Requests that have
begun keep the model they began with, which is closed when the last of them is finished. If the new one cannot be
loaded, the old one stays.
"""

import gc
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from regard.errors import UserError
from regard.run import model_files
from regard.serve.limits import Limits
from regard.serve.models.engine_thread import EngineThread
from regard.serve.models.languages import Languages, parse_languages
from regard.serve.models.served_model import LoadOptions, ServedModel, load_served_model

CHECK_SECONDS = 2.0
"""How often files are looked at."""
IDLE_SECONDS = 30.0
"""A model that was replaced is closed at the latest when it has been idle for so long."""
Stamp = tuple[tuple[str, int, int, int], ...]
"""The names of files, and what changes when they do; empty while there is no model to be loaded."""


class UnknownModelError(UserError):
    """No model of this server has this name, or can do this."""


@dataclass(frozen=True)
class ModelSource:
    """Where a model of the server comes from."""

    name: str
    path: str
    """A run folder, one of its checkpoints, or a pretrained model."""
    languages: Languages | None = None

    def stamp(self) -> Stamp:
        """What changes when the model does. RUN@best, and a run that has not finished, change as the run goes on."""
        try:
            files = model_files(self.path)
            found = [(path, path.stat()) for path in files]
        except (UserError, OSError, ValueError):  # it is being replaced, or damaged
            return ()
        if not any(path.name in ("run.json", "state.json") for path in files):
            return ()
        return tuple((str(path), one.st_mtime_ns, one.st_size, one.st_ino) for path, one in found)


class ModelRegistry:
    """The models of a server. Finding one and replacing one may happen at any time, in any thread."""

    def __init__(
        self, sources: Sequence[ModelSource], limits: Limits, options: LoadOptions, log: Callable[[str], None]
    ) -> None:
        self.limits, self.options, self.log = limits, options, log
        self._sources = {source.name: source for source in sources}
        self.reloads: Counter[tuple[str, str]] = Counter()
        """How often each model was loaded again, and with which result: `ok` or `failed`."""
        self._stamps = {source.name: source.stamp() for source in sources}
        """Of the files that were loaded, or could not be loaded."""
        self._seen = dict(self._stamps)
        """Of the files as they were at the last look."""
        self._failed: set[str] = set()
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

    def reload(self) -> None:
        """Load the models again that have changed, and try those again that could not be loaded."""
        with self._lock:
            wanted = [
                source
                for name, source in self._sources.items()
                if (stamp := source.stamp()) and (self._has_changed(name, stamp) or name in self._failed)
            ]
            for source in wanted:
                self._replace(source)
            if not wanted:
                self.log("No model has changed.")

    def look(self) -> None:
        """Load the models again whose files have changed, and have not gone on changing since the last look."""
        with self._lock:
            for name, source in self._sources.items():
                stamp, before = source.stamp(), self._seen[name]
                self._seen[name] = stamp
                if stamp and stamp == before and self._has_changed(name, stamp):
                    self._replace(source)

    def close(self) -> None:
        """Stop everything."""
        self._closed.set()
        for model in self:
            model.close()

    def _has_changed(self, name: str, stamp: Stamp) -> bool:
        """Whether the files are others than those last loaded.

        A finished model that has no run.json for the moment is being replaced; until it has one, its name means a
        checkpoint, which is not what was served.
        """
        is_being_replaced = _is_finished(self._stamps[name]) and not _is_finished(stamp)
        return stamp != self._stamps[name] and not is_being_replaced

    def _replace(self, source: ModelSource) -> None:
        """Load a model, and let it take the place of the old one if that succeeds."""
        name = source.name
        self._stamps[name] = source.stamp()  # before it is loaded, so that later changes are found
        try:
            model = self._load(source)
        except Exception as error:  # also a defect: the old model must go on
            self._failed.add(name)
            self.reloads[name, "failed"] += 1
            self.log(f"{name} was not loaded again, and the old model goes on: {error}")
            return
        self._failed.discard(name)
        _close_when_unused(self._models[name])
        self._models[name] = model
        self.reloads[name, "ok"] += 1
        self.log(f"{name} was loaded again.")

    def _load(self, source: ModelSource) -> ServedModel:
        return load_served_model(source.name, source.path, self.limits, self.options, self.log, source.languages)

    def _watch(self) -> None:
        while not self._closed.wait(CHECK_SECONDS):
            try:
                self.look()
            except Exception as error:  # whatever it is, the next look may succeed
                self.log(f"The models' files could not be looked at: {error}")


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


def _is_finished(stamp: Stamp) -> bool:
    return any(path.endswith("run.json") for path, *_ in stamp)


def _close_when_unused(model: ServedModel) -> None:
    """Close a model that no new request finds, once the last request that has found it is finished."""
    engines, found = model.engines(), weakref.ref(model)
    threading.Thread(target=_wait_and_close, args=(found, engines), name="regard-close", daemon=True).start()


def _wait_and_close(found: "weakref.ref[ServedModel]", engines: list[EngineThread]) -> None:
    idle_since = time.monotonic()
    while (model := found()) is not None:  # else nothing refers to it, and its engines have nothing to do either
        if not model.idle:
            idle_since = time.monotonic()
        elif time.monotonic() - idle_since > IDLE_SECONDS:
            model.close()
            break
        del model
        time.sleep(0.2)
    model = None
    while engines:
        engines.pop().close()
    gc.collect()  # modules and decoders refer to each other, and hold the weights
