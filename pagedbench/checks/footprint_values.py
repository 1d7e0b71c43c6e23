"""What the sums of a row give away where no set of slots explains them: V scaled or shifted, or wrong in some channels
only.

A wrong set of slots changes nearly every channel, each by another amount, since codes are drawn channel by channel.
"""

from __future__ import annotations

import numpy as np

from pagedbench.checks.footprint_detect import HALF_CODE
from pagedbench.checks.footprint_words import span_words, spans

# So many channels with a sum other than 0 tell a common factor from chance.
_FEWEST_SUMS = 3
_SAME_FACTOR = 0.25
_ROUNDING = 2.0**-7
_MOST_ROOM = 2.0
# A wrong slot leaves a channel as it is once in eight times at most.
_SOME = 0.25


def describe_values(decoded: np.ndarray, wanted: np.ndarray) -> str | None:
    """A clause on the sums `(channels,)` of one row and head; None where they are those of a set of slots, for all that
    can be told."""
    wrong = np.flatnonzero(np.abs(decoded - wanted) >= HALF_CODE)
    if not len(wrong):
        return None
    factor = _factor(decoded, wanted)
    if factor is not None:
        return f"holds its keys' values times {factor:.2g}: V or the output is scaled, no slot is wrong"
    if _shifted(decoded, wanted):
        return "holds its keys' values and one number more in all channels: no slot is wrong"
    if len(wrong) <= _SOME * len(wanted):
        return f"holds the values of no key in {span_words('channel', spans(wrong))} of V, the others are right"
    if len(set(wanted.tolist())) >= _FEWEST_SUMS and _permuted(decoded, wanted):
        return "holds its keys' values with the channels of V in another order"
    return None


def _factor(decoded: np.ndarray, wanted: np.ndarray) -> float | None:
    """What all channels are multiplied by, if there is such a number."""
    if np.count_nonzero(wanted) < _FEWEST_SUMS:
        return None
    factor = float(decoded @ wanted / (wanted @ wanted))
    room = _SAME_FACTOR * max(abs(factor), _SAME_FACTOR)
    return factor if bool((np.abs(decoded - factor * wanted) < room).all()) else None


def _shifted(decoded: np.ndarray, wanted: np.ndarray) -> bool:
    """One number was added in all channels: to the output's rounding, as long as that leaves the codes to be seen."""
    shift = decoded - wanted
    room = max(_SAME_FACTOR, _ROUNDING * abs(float(shift.mean())))
    return room < _MOST_ROOM and bool((np.abs(shift - shift.mean()) < room).all())


def _permuted(decoded: np.ndarray, wanted: np.ndarray) -> bool:
    return bool((np.abs(np.sort(decoded) - np.sort(wanted)) < HALF_CODE).all())
