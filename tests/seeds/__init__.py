"""The worked examples of the five lecture decks, with the slides' own numbers. docs/seeds.md says what was found."""
