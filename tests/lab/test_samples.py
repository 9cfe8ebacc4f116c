"""Whether two numbers over the seeds differ."""

from regard.lab.samples import Sample, differ


def test_three_seeds_need_more_than_twice_the_standard_error() -> None:
    """With 4 degrees of freedom the quantile of Student's t is 2.78: here t is 2.45, which a normal test would take."""
    low, high = Sample((9.0, 10.0, 11.0)), Sample((11.0, 12.0, 13.0))
    assert differ(low, high) is False
    assert differ(low, Sample((11.5, 12.5, 13.5))) is True  # t = 3.06


def test_one_seed_cannot_tell() -> None:
    assert differ(Sample((1.0,)), Sample((100.0, 101.0))) is None


def test_many_seeds_are_known() -> None:
    values = tuple(float(number) for number in range(20))
    assert differ(Sample(values), Sample(tuple(value + 10 for value in values))) is True
    assert differ(Sample(values), Sample(tuple(value + 1 for value in values))) is False
