"""Hugging Face models onto our parts, read from their files without their library, and ours into files of theirs."""

from regard.interop.huggingface.export import export_huggingface
from regard.interop.huggingface.folder import import_huggingface

__all__ = ["export_huggingface", "import_huggingface"]
