"""Models from elsewhere and for elsewhere: Hugging Face, ARPA files and word vectors in and out, CTranslate2 out."""

from regard.interop.arpa import export_arpa, import_arpa
from regard.interop.ctranslate2.export import export_ctranslate2
from regard.interop.huggingface import ImageProcessor, export_huggingface, import_huggingface, load_image_processor

__all__ = [
    "ImageProcessor",
    "export_arpa",
    "export_ctranslate2",
    "export_huggingface",
    "import_arpa",
    "import_huggingface",
    "load_image_processor",
]
