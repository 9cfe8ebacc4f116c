"""Parsing: a sentence becomes its constituency tree, written as brackets."""

from regard.task.registry import TaskInfo

TASK = TaskInfo(
    name="parsing",
    recipe=f"{__name__}.recipe:ParsingRecipe",
    task=f"{__name__}.task:ParsingTask",
    pipeline=f"{__name__}.pipeline:Parser",
    commands=("parse",),
)
