"""`regard vectors`: a group of commands, which register themselves with it."""

from regard.cli.commands.vectors import questions, context, ratios, pictures  # isort: skip - the order of their help
from regard.cli.commands.vectors.model import app

__all__ = ["app", "context", "pictures", "questions", "ratios"]
