"""Phases: a listener is told of them in order, and reads their counts; without a listener they do nothing."""

from regard.progress import Phase, counted, listen_to_phases, phase


class Recorder:
    """Records when phases begin and end, with their counts."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, int]] = []

    def on_phase_begin(self, phase: Phase) -> None:
        self.events.append(("begin", phase.name, phase.done))

    def on_phase_end(self, phase: Phase) -> None:
        self.events.append(("end", phase.name, phase.done))


def test_listener_follows_nested_phases_and_their_counts() -> None:
    recorder = Recorder()
    with listen_to_phases(recorder), phase("outer", "files", 3) as outer:
        assert list(counted("abc", "inner")) == ["a", "b", "c"]
        outer.update(2)
    assert recorder.events == [("begin", "outer", 0), ("begin", "inner", 0), ("end", "inner", 3), ("end", "outer", 2)]


def test_phase_ends_if_its_work_fails() -> None:
    recorder = Recorder()
    try:
        with listen_to_phases(recorder), phase("failing"):
            raise KeyError
    except KeyError:
        pass
    assert [event for event, *_ in recorder.events] == ["begin", "end"]


def test_without_a_listener_only_the_work_is_done() -> None:
    recorder = Recorder()
    with listen_to_phases(recorder):
        pass
    with phase("unheard") as current:
        assert list(current.count(range(4))) == [0, 1, 2, 3]
    assert (current.done, recorder.events) == (4, [])
