"""The one error a person is meant to read.

Everything a user can get wrong (a file, a key, a shape, an id) ends as a `UserError` whose text is a full
sentence: what was found, where, and what to do. Commands print it and leave with code 2; a server answers 4xx.
It is a `ValueError`, so code that calls regard as a library catches what it would expect to catch.
"""


class UserError(ValueError):
    """Something given to regard is wrong; the message says what, where and what to do."""
