"""Vectors of words in their sentence, vectors of sentences, and search by them, with any model of texts."""
