"""Reading files, tokenizers, batching by tokens, the registry of data sets."""
