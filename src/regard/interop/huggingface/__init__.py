"""Hugging Face models onto our parts: Marian, BART, GPT-2 and Llama, read from their files without their library."""

from regard.interop.huggingface.folder import import_huggingface

__all__ = ["import_huggingface"]
