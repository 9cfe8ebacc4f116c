"""Embeddings: the static vectors of a vocabulary, and what the layers of a model make of them in a sentence."""
