"""Models from elsewhere and for elsewhere: Hugging Face in and out, CTranslate2 out."""

from regard.interop.ctranslate2.export import export_ctranslate2
from regard.interop.huggingface import ImageProcessor, export_huggingface, import_huggingface, load_image_processor

__all__ = ["ImageProcessor", "export_ctranslate2", "export_huggingface", "import_huggingface", "load_image_processor"]
