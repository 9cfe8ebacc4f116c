"""Static word vectors: training them, testing them, and asking them."""
