"""Natural languages: their names, and telling which one a text is written in."""
