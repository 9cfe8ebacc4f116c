"""Labeled images: reading them from folders and arrays, batches, augmentation."""
