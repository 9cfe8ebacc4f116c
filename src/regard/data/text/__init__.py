"""Text: lines and pairs from files, corpora, documents, filters, sentence splitting, word alignment."""
