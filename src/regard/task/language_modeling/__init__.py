"""Language modeling: predict the next token of a text from those before it."""

from regard.task.registry import TaskInfo

TASK = TaskInfo(
    name="language-modeling",
    recipe=f"{__name__}.recipe:LanguageModelingRecipe",
    task=f"{__name__}.task:LanguageModelingTask",
    pipeline=f"{__name__}.pipeline:TextGenerator",
    commands=("generate",),
)
