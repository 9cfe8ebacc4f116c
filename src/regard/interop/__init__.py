"""Models from elsewhere and for elsewhere: Hugging Face in and out, CTranslate2 out."""

from regard.interop.ctranslate2 import export_ctranslate2
from regard.interop.huggingface import Preparation, export_huggingface, import_huggingface, preparation_of

__all__ = ["Preparation", "export_ctranslate2", "export_huggingface", "import_huggingface", "preparation_of"]
