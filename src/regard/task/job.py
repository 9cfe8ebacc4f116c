"""A job is a task in a run's folder: what the loop needs of it, and what is said and kept of it around the loop."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol, TypeVar

from regard.cost import Work
from regard.model import AnyModel
from regard.task.recipe import Recipe, Say, tell
from regard.train.task import AnyBatch, Task
from regard.train.world import World


class Score(Protocol):
    """How a test went. A frozen dataclass of numbers and of what makes them comparable."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def __str__(self) -> str:
        """What a person wants to know of it, the number that counts first."""
        ...

    def rounded(self) -> dict[str, Any]:
        """All of it as plain data, as exact as is worth writing down."""
        ...


class Job(Task[AnyBatch], Protocol[AnyBatch]):
    """A recipe under way."""

    @property
    def model(self) -> AnyModel: ...

    @property
    def world(self) -> World: ...

    @property
    def report(self) -> str:
        """What is trained on, as the end of a sentence."""
        ...

    def work(self) -> Work:
        """The batches as they are, of all processes together."""
        ...

    def test(self, say: Say) -> dict[str, Score]:
        """Do the real thing on each test set, once, when training is over; each result is said."""
        ...

    def facts(self) -> dict[str, Any]:
        """What a run's folder keeps of it: fingerprints of the data ("data"), and whatever is needed to use the model
        as it was tested."""
        ...


Held = TypeVar("Held")


def score_sets(recipe: Recipe, held: Mapping[str, Held], score: Callable[[Held], Score], say: Say) -> dict[str, Score]:
    """The score of each test set among what is held, or of the validation part if it is all there is; each is said."""
    scores: dict[str, Score] = {}
    for name in [name for name in held if name != "valid"] or held:
        scores[name] = score(held[name])
        say(tell(recipe, name, scores[name]))
    return scores
