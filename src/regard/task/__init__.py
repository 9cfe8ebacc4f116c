"""What ties data, model, loss and measure together. So far: translation."""
