"""Hugging Face models onto our parts, read from their files without their library, and ours into files of theirs."""

from regard.interop.huggingface.export import export_huggingface
from regard.interop.huggingface.image_processor import ImageProcessor, load_image_processor
from regard.interop.huggingface.importer import import_huggingface

__all__ = ["ImageProcessor", "export_huggingface", "import_huggingface", "load_image_processor"]
