"""Experiments whose answer is a report: `regard compare` and `regard ablate`."""
