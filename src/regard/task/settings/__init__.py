"""The settings of recipes, described from their config classes: for `regard settings` and docs/configuration.md."""

from regard.task.settings.fields import ConfigField, config_fields, config_meaning, fixed_kind, table_fields
from regard.task.settings.keys import (
    Setting,
    adapt_field,
    all_settings,
    find_settings,
    get_task_settings,
    parent_table,
    recipe_exclusions,
    recipe_table,
    task_settings,
)

__all__ = [
    "ConfigField",
    "Setting",
    "adapt_field",
    "all_settings",
    "config_fields",
    "config_meaning",
    "find_settings",
    "fixed_kind",
    "get_task_settings",
    "parent_table",
    "recipe_exclusions",
    "recipe_table",
    "table_fields",
    "task_settings",
]
