"""Numbers formatted for reading."""


def si_prefixed(number: float) -> str:
    """7400000 → "7.4 M"; a unit may follow."""
    power = (len(str(int(number))) - 1) // 3
    return f"{number / 1000**power:.1f} {('', 'k', 'M', 'G', 'T', 'P', 'E', 'Z', 'Y')[power]}"


def duration_range(low: float, high: float) -> str:
    """A range of minutes, in the unit that suits its upper end."""
    units = (("days", 1440.0, 2880.0), ("hours", 60.0, 120.0), ("minutes", 1.0, 1.0), ("seconds", 1 / 60, 0.0))
    unit, scale = next((unit, scale) for unit, scale, minimum in units if high >= minimum)
    return "–".join(f"{time / scale:,.{0 if time / scale >= 10 else 1}f}" for time in (low, high)) + f" {unit}"


def number_range(low: float, high: float) -> str:
    """A range of numbers of any size, with at least two significant digits."""
    return "–".join(f"{number:,.0f}" if number >= 10 else f"{number:.2g}" for number in (low, high))
