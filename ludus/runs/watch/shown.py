"""Bounds of filters on numbers, as the page shows these numbers. Pure.

Knows: how many digits the page shows.  Knows not: queries.
Invariant: a row passes a bound exactly if the number that is shown in it does. `web/src/data/shown.ts` is the same
rule.
"""

from __future__ import annotations

import math

_DIGITS = ((1e6, 1e4), (1e4, 100.0), (100.0, 0.1), (10.0, 0.01), (0.001, 0.001))
"""From this size on, the last digit that is shown. Smaller numbers are shown with two significant digits."""
_TINY = 1e-300
_ROUNDING = 1e-6  # of a digit: a bound such as 0.15000000000000002 means the number that is shown


def shown_from(least: float) -> float:
    """The least value that is shown as `least` or more."""
    if abs(least) < _TINY:  # what is not 0 is never shown as 0
        return least
    digit = _digit(least)
    shown = math.ceil(least / digit - _ROUNDING) * digit
    start = shown - digit / 2
    below = _digit(start)  # below 10 there is a digit more than above it
    return shown - below / 2 if below < digit else start


def shown_to(most: float) -> float:
    """The greatest value that is shown as `most` or less."""
    return -shown_from(-most)


def _digit(value: float) -> float:
    size = abs(value)
    return next((digit for at, digit in _DIGITS if size >= at), None) or 10.0 ** (math.floor(math.log10(size)) - 1)
