"""Masked language modeling: predict masked tokens from the text on both sides of them."""

from regard.task.registry import TaskInfo

TASK = TaskInfo(
    name="masked-lm",
    recipe=f"{__name__}.recipe:MaskedLMRecipe",
    task=f"{__name__}.task:MaskedLMTask",
    pipeline=f"{__name__}.pipeline:FillMask",
    commands=("fill",),
)
