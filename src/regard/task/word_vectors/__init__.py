"""Static word vectors: training them, testing them, and asking them."""

from regard.task.registry import TaskInfo

TASK = TaskInfo(
    name="word-vectors",
    recipe=f"{__name__}.recipe:WordVectorsRecipe",
    task=f"{__name__}.task:WordVectorsTask",
    pipeline=f"{__name__}.pipeline:WordVectors",
    commands=("vectors",),
)
