"""The run folder: a model as a folder of plain files that any later version can open."""

from regard.run.folder import FORMAT, Loaded, load, save

__all__ = ["FORMAT", "Loaded", "load", "save"]
