"""Recurrent networks: encoder–decoders with and without attention, GNMT, Deep-Att, mixtures of experts."""
