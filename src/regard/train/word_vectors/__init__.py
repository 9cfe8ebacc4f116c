"""Training static word vectors: many small updates of few rows, which is another kind of work than the trainer's."""
