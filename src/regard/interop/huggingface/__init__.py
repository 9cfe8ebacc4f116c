"""Hugging Face models onto our parts, read from their files without their library, and ours into files of theirs."""

from regard.interop.huggingface.export import export_huggingface
from regard.interop.huggingface.folder import import_huggingface
from regard.interop.huggingface.pictures import Preparation, preparation_of

__all__ = ["Preparation", "export_huggingface", "import_huggingface", "preparation_of"]
