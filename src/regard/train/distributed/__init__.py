"""Training with several processes: their communication, placement of the weights, and what each computes."""
