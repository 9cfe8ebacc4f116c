"""Convolutional networks: ConvS2S, ByteNet, and gated convolutions as a language model."""
