"""Tokenizers: text to ids and back, training them, decoding a stream of tokens."""
