"""What leaves each box of the model diagram in one pass: its shape, norms and values, and what the box costs."""
