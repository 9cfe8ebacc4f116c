"""The run folder: a model as a folder of plain files that any later version can open."""

from regard.run.folder import FORMAT, Loaded, find, finish, load, read_facts, save, shipped_models

__all__ = ["FORMAT", "Loaded", "find", "finish", "load", "read_facts", "save", "shipped_models"]
