"""Positional encodings compared: their values, similarities, and the requirements that a lecture states for them."""
