"""Models from elsewhere and for elsewhere: Hugging Face in and out, CTranslate2 out."""

from regard.interop.ctranslate2 import export_ctranslate2
from regard.interop.huggingface import export_huggingface, import_huggingface

__all__ = ["export_ctranslate2", "export_huggingface", "import_huggingface"]
