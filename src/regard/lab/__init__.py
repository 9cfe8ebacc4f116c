"""Experiments whose answer is a report: several models on the same data with the same budget (`regard compare`)."""

from regard.lab.ladder import Ladder, list_ladders, read_ladder

__all__ = ["Ladder", "list_ladders", "read_ladder"]
