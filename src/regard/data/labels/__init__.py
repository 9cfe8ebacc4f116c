"""Labeled texts and tagged sentences: readers, and batches for classification."""
