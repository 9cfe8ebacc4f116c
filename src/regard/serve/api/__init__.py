"""The public HTTP API: our own JSON, and the protocols that clients of other services speak."""
