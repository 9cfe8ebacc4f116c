"""Background jobs with progress, each running until it is done or stopped."""

import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Literal

from regard.errors import UserError
from regard.look.schema import Job, JobResult
from regard.serve.inspector.trace_store import NotFoundError
from regard.serve.worker import Worker

MAX_JOBS = 100
"""Jobs that are remembered; the oldest finished ones are dropped."""

Steps = Callable[[], Iterator[tuple[int, JobResult]]]
"""Does the work step by step. Yields the number of steps and the results so far: before the first step, and after each
step. Between two of them the model can be used for something else."""

JobKind = Literal["head importance", "head roles", "contrast", "module times"]


class BusyError(UserError):
    """Such a job of the model is already running."""


class Jobs:
    """All jobs of a server: of each kind, at most one running per model.

    A measurement of the importance of all heads takes long, so it has to be stopped before another. A new job of any
    other kind stops the one before: somebody asks about this token and then about that one. A job may have a key that
    says what it computes; if the same is asked again, the answer is the job that is running or done.
    """

    def __init__(self) -> None:
        self._jobs: OrderedDict[str, _JobThread] = OrderedDict()
        self._lock = threading.Lock()

    def start(self, kind: JobKind, model: str, steps: Steps, worker: Worker, key: str = "") -> Job:
        """Start a job whose steps are run by the model's worker, each when it is its turn."""
        with self._lock:
            others = [each for each in self._jobs.values() if (each.kind, each.job.model) == (kind, model)]
            for other in others:
                if key and other.key == key and (other.goes_on or other.job.state == "done"):
                    return other.job
            for other in others:
                if other.goes_on and kind == "head importance":
                    raise BusyError("The heads of this model are already being measured; stop that job or wait for it.")
                other.stopped.set()
            job_id = secrets.token_urlsafe(9)
            thread = _JobThread(kind, Job(id=job_id, model=model, done=0, total=0, state="running", error=""), key)
            self._jobs[job_id] = thread
            latest = {(each.kind, each.job.model): name for name, each in self._jobs.items() if each.key}
            for finished in [name for name, each in self._jobs.items() if each.job.state != "running"]:
                if len(self._jobs) > MAX_JOBS and finished not in latest.values():
                    del self._jobs[finished]
        threading.Thread(target=thread.run, args=(steps, worker), name="regard-job", daemon=True).start()
        return thread.job

    def get(self, job_id: str) -> Job:
        return self._find(job_id).job

    def stop(self, job_id: str) -> Job:
        """Stop a job after its current step; its results so far are kept."""
        thread = self._find(job_id)
        thread.stopped.set()
        return thread.job

    def stop_all(self) -> None:
        with self._lock:
            for thread in self._jobs.values():
                thread.stopped.set()

    def _find(self, job_id: str) -> "_JobThread":
        with self._lock:
            if job_id not in self._jobs:
                raise NotFoundError("There is no such job; the server may have been restarted since. Start it again.")
            return self._jobs[job_id]


class _JobThread:
    """A job and the work of its thread. `job` is replaced as a whole, so that readers always see a consistent state."""

    def __init__(self, kind: JobKind, job: Job, key: str) -> None:
        self.kind, self.job, self.key = kind, job, key
        self.stopped = threading.Event()

    @property
    def goes_on(self) -> bool:
        return self.job.state == "running" and not self.stopped.is_set()

    def run(self, steps: Steps, worker: Worker) -> None:
        try:
            results, done = steps(), 0
            while (step := worker.call(lambda: next(results, None))) is not None:
                total, result = step
                self._update(total=total, done=done, result=result)
                if self.stopped.is_set() and done < total:
                    self._update(state="stopped")
                    return
                done += 1
            self._update(state="done")
        except UserError as error:
            self._update(state="failed", error=str(error))
        except Exception as error:  # report it to the client that polls the job
            self._update(state="failed", error=f"Internal error ({error}).")

    def _update(self, **changes: object) -> None:
        self.job = self.job.model_copy(update=changes)
