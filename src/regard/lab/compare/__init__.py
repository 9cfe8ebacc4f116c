"""`regard compare`: several models on the same data with the same budget."""

from regard.lab.compare.ladder import Ladder, list_ladders, read_ladder

__all__ = ["Ladder", "list_ladders", "read_ladder"]
