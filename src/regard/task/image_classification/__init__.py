"""Image classification: which of a set of classes an image shows."""

from regard.task.registry import TaskInfo

TASK = TaskInfo(
    name="image-classification",
    recipe=f"{__name__}.recipe:ImageClassificationRecipe",
    task=f"{__name__}.task:ImageClassificationTask",
    pipeline=f"{__name__}.pipeline:ImageClassifier",
    commands=("classify",),
)
