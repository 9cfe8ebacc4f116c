"""Positional encodings: absolute ones, combined with the embeddings, and RoPE, which rotates queries and keys."""
