"""Tokenized items on disk, memory-mapped."""
