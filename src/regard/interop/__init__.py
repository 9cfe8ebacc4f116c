"""Models in other people's formats."""

from regard.interop.huggingface import import_huggingface

__all__ = ["import_huggingface"]
