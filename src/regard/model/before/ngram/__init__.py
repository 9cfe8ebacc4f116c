"""Tables of n-grams: estimation with modified Kneser–Ney smoothing, the model, ARPA files."""
