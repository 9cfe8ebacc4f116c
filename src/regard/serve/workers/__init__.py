"""Several processes that serve the same models on the same socket, and the supervisor that keeps them running."""
