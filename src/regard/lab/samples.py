"""Numbers over random seeds, and whether two of them differ: Student's t-test at the 5% level."""

import math
from dataclasses import dataclass
from statistics import fmean, stdev

_T_95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)
"""The two-sided 5% quantile of Student's t distribution for 1, 2, … degrees of freedom."""
_T_MANY = 2.0


@dataclass(frozen=True)
class Sample:
    """A number over the seeds."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return fmean(self.values)

    @property
    def std(self) -> float | None:
        """The standard deviation; None with one seed."""
        return stdev(self.values) if len(self.values) > 1 else None

    def shown(self, decimals: int) -> str:
        mean = f"{self.mean:,.{decimals}f}" if self.mean < 1e6 else "> 1,000,000"
        return mean if self.std is None or self.mean >= 1e6 else f"{mean} ± {self.std:,.{decimals}f}"


def differ(one: Sample, other: Sample) -> bool | None:
    """Whether the means differ by more than chance explains; None if one has a single seed, which cannot tell."""
    if one.std is None or other.std is None:
        return None
    error = math.sqrt(one.std**2 / len(one.values) + other.std**2 / len(other.values))
    freedom = len(one.values) + len(other.values) - 2
    return abs(one.mean - other.mean) > error * (_T_95[freedom - 1] if freedom <= len(_T_95) else _T_MANY)
