"""Traced models: a pipeline's model with how its input is tokenized, run and displayed, for every task."""
