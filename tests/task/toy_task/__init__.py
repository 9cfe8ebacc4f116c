"""A toy task in a package outside of regard: reverse the letters of a line."""

from regard.task.registry import TaskInfo

TASK = TaskInfo(
    name="reversal",
    recipe=f"{__name__}.recipe:ReversalRecipe",
    task=f"{__name__}.task:ReversalTask",
    pipeline=f"{__name__}.pipeline:Reverser",
)
