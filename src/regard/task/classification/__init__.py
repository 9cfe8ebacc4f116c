"""Text classification and token classification: a label for each text, or for each of its words."""

from regard.task.registry import TaskInfo

TEXTS = TaskInfo(
    name="text-classification",
    recipe=f"{__name__}.recipe:TextClassificationRecipe",
    task=f"{__name__}.task:ClassificationTask",
    pipeline=f"{__name__}.pipeline:TextLabeler",
    commands=("classify",),
    head="classification",
)
TOKENS = TaskInfo(
    name="token-classification",
    recipe=f"{__name__}.recipe:TokenClassificationRecipe",
    task=f"{__name__}.task:ClassificationTask",
    pipeline=f"{__name__}.pipeline:TextLabeler",
    commands=("tag",),
    head="token_classification",
)
