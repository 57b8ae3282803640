"""Numbers in terminals and notebooks: three digits and a unit, as on the page."""

from __future__ import annotations

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def _digits(number: float) -> str:
    places = 0 if number >= 99.95 else 1 if number >= 9.995 else 2
    return f"{number:.{places}f}"


def size(size_bytes: float) -> str:
    """Return a size in binary units.

    >>> size(0), size(1536), size(123456789)
    ('0 B', '1.50 KiB', '118 MiB')
    """
    unit = 0
    while size_bytes >= 1023.5 and unit < len(_UNITS) - 1:
        size_bytes /= 1024
        unit += 1
    return f"{_digits(size_bytes) if unit else round(size_bytes)} {_UNITS[unit]}"


def duration(seconds: float) -> str:
    """Return a length of time.

    >>> duration(0), duration(0.00123), duration(12.34), duration(75), duration(7260)
    ('0 s', '1.23 ms', '12.3 s', '1 min 15 s', '2 h 1 min')
    """
    if seconds <= 0:
        return "0 s"
    if seconds < 0.0000995:
        return f"{_digits(seconds * 1e6)} µs"
    if seconds < 0.0995:
        return f"{_digits(seconds * 1e3)} ms"
    if seconds < 59.95:
        return f"{_digits(seconds)} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    minutes = round(whole / 60)
    return f"{minutes // 60} h {minutes % 60} min"


def remaining(seconds: float) -> str:
    """Return a remaining time, which is too uncertain for decimals.

    >>> remaining(0.4), remaining(12.34)
    ('a moment', '12 s')
    """
    return "a moment" if seconds < 1 else f"{seconds:.0f} s" if seconds < 59.5 else duration(seconds)


def percent(part: int, whole: int) -> str:
    """Return a fraction in per cent; 100 only when all is done.

    >>> percent(0, 0), percent(999, 1000), percent(1000, 1000)
    ('0 %', '99 %', '100 %')
    """
    if not whole:
        return "0 %"
    return f"{100 if part >= whole else min(99, 100 * part // whole)} %"


def plural(number: int, noun: str) -> str:
    """Return a number of things.

    >>> plural(1, "chunk"), plural(5000, "chunk")
    ('1 chunk', '5,000 chunks')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
