"""The check that every refused command shares."""

from tests.task.small import Result


def assert_refused(done: Result, *parts: str) -> None:
    """Exit code 2, nothing on standard output, and one line on standard error that contains these parts."""
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1), done.err
    assert done.err.startswith("regard: ")
    for part in parts:
        assert part in done.err, done.err
