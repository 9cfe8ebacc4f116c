"""Data: reading files, tokenizers, batches and the registry of named datasets.

source       where a task's data is: a path, or a path in a named dataset
text         lines, sentence pairs, corpora, documents, filters, sentence splitting, word alignment
tokenizers   text to ids and back, training tokenizers, streaming
batching     batches by tokens, windows, packed documents, masking
store        tokenized items on disk
images, trees, labels   the data of the other tasks
registry     named datasets: finding, downloading and checking them
"""
