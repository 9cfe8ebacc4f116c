"""Requests are put into batches of a bounded number of tokens, whatever else is in the list."""

from regard.decode import DecodeConfig, Hypothesis, Request, search_all


def batch_sizes(requests: list[Request], batch_tokens: int, threads: int = 1) -> list[int]:
    sizes = []

    def record(model: object, batch: list[Request], eos: int) -> list[list[Hypothesis]]:
        sizes.append(len(batch))
        return [[] for _ in batch]

    search_all(None, requests, 2, batch_tokens=batch_tokens, threads=threads, search=record)  # type: ignore[arg-type]
    return sizes


def test_a_short_group_does_not_make_later_batches_smaller() -> None:
    short = Request((5,), 9, DecodeConfig(beam_size=2))
    others = [Request((5,) * 9, 9, DecodeConfig(beam_size=1)) for _ in range(20)]
    assert batch_sizes([short, *others], 100) == [1, 10, 10]


def test_every_thread_gets_a_batch_of_each_group() -> None:
    requests = [Request((5,) * 9, 9, DecodeConfig(beam_size=size)) for size in (1, 1, 2, 2, 2, 2)]
    assert sorted(batch_sizes(requests, 100, threads=2)) == [1, 1, 2, 2]
