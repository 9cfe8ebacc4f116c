"""The worked examples of the five lecture decks, with the slides' numbers. docs/lectures.md describes the results."""
