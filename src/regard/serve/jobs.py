"""Work that goes on in the background, with its progress, until it is done or stopped."""

import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator

from regard.errors import UserError
from regard.look.wire import Job, Worth
from regard.serve.shelf import UnknownError

REMEMBERED = 100
"""Jobs that are remembered; of those that are over the oldest go."""

Steps = Callable[[], Iterator[tuple[int, Worth]]]
"""Does the work bit by bit: how many bits there are, and what is known so far."""


class BusyError(UserError):
    """Something is under way already."""


class Jobs:
    """All jobs, at most one for each model at a time."""

    def __init__(self) -> None:
        self._jobs: OrderedDict[str, _Running] = OrderedDict()
        self._lock = threading.Lock()

    def start(self, model: str, steps: Steps) -> Job:
        with self._lock:
            if any(one.job.model == model and one.job.state == "running" for one in self._jobs.values()):
                raise BusyError("The heads of this model are being judged already; stop that first, or wait for it.")
            name = secrets.token_urlsafe(9)
            running = _Running(Job(id=name, model=model, done=0, of=0, state="running", reason=""))
            self._jobs[name] = running
            for old in [key for key, one in self._jobs.items() if one.job.state != "running"]:
                if len(self._jobs) > REMEMBERED:
                    del self._jobs[old]
        threading.Thread(target=running.work, args=(steps,), name="regard-job", daemon=True).start()
        return running.job

    def get(self, name: str) -> Job:
        return self._find(name).job

    def stop(self, name: str) -> Job:
        """Let the bit of work under way be the last; what is known so far stays."""
        running = self._find(name)
        running.stopped.set()
        return running.job

    def stop_all(self) -> None:
        with self._lock:
            for running in self._jobs.values():
                running.stopped.set()

    def _find(self, name: str) -> "_Running":
        with self._lock:
            if name not in self._jobs:
                raise UnknownError(
                    "There is no such job: it may be from before the server was started. Start it again."
                )
            return self._jobs[name]


class _Running:
    """One job. What it tells is always a whole `Job`, put in the place of the one before."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.stopped = threading.Event()

    def work(self, steps: Steps) -> None:
        try:
            for count, worth in steps():
                self._now(of=count, done=len(worth.heads), result=worth)
                if self.stopped.is_set() and len(worth.heads) < count:
                    self._now(state="stopped")
                    return
            self._now(state="done")
        except UserError as error:
            self._now(state="failed", reason=str(error))
        except Exception as error:  # whoever waits for it must hear of it
            self._now(state="failed", reason=f"Something went wrong that should not have ({error}).")

    def _now(self, **changes: object) -> None:
        self.job = self.job.model_copy(update=changes)
