"""Translation: a sentence in one language becomes a sentence in another."""

from regard.task.registry import TaskInfo

TASK = TaskInfo(
    name="translation",
    recipe=f"{__name__}.recipe:TranslationRecipe",
    task=f"{__name__}.task:TranslationTask",
    pipeline=f"{__name__}.pipeline:Translator",
    commands=("translate", "shortlist"),
    text_pairs=True,
)
