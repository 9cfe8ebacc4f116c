"""Pictures of word vectors: bars, cosine matrices, and maps of words and documents."""
