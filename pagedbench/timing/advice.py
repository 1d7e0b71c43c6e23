"""Warnings beside a measurement: what looks odd about its samples, and what to do about it."""

from __future__ import annotations

from collections.abc import Mapping

from pagedbench.timing.measurement import Timed
from pagedbench.timing.options import TimingOptions
from pagedbench.timing.stats import correlation_time, outlier_share

UNSURE = 5.0
"""A median known less precisely than this many times the precision asked for deserves a sentence; less is visible in
the interval."""
MANY_OUTLIERS = 0.05
MANY_DROPPED = 0.25


def warnings_for(timed: Timed, options: TimingOptions) -> list[str]:
    """What a reader of this quantity should know, each with a hint; nothing of those that stand only in the record."""
    said: list[str] = []
    if timed.name in ("plan", "total"):
        return said
    if len(timed.samples) == 1:
        said.append(f"{timed.name}: one sample says nothing of its spread ({timed.stop}); allow more time")
    if timed.stop != "precise enough" and timed.half_width > UNSURE * options.precision:
        said.append(
            f"{timed.name}: the median is only known to ±{timed.half_width:.1%} ({timed.stop} after "
            f"{len(timed.samples)} samples); allow more time, or close what else uses the machine"
        )
    if len(timed.samples) >= 20 and (share := outlier_share(timed.samples)) > MANY_OUTLIERS:
        said.append(
            f"{timed.name}: {share:.0%} of the samples are outliers; something else may be using the machine, "
            "or the call does more work now and then (a cache that fills, a workspace that grows)"
        )
    if len(timed.samples) >= 50 and correlation_time(timed.samples) > 5:
        said.append(f"{timed.name}: samples drift (clocks still settling?); a longer warm-up makes them steadier")
    said.extend(_dropped(timed.name, timed.dropped, len(timed.samples)))
    return said


def _dropped(name: str, dropped: Mapping[str, int], kept: int) -> list[str]:
    """Samples that were dropped, where they are many enough to wonder about."""
    return [
        f"{name}: {count} of {count + kept} samples dropped: {reason}"
        for reason, count in dropped.items()
        if count > MANY_DROPPED * (count + kept)
    ]


def launch_bound(kernel: Timed | None, call: Timed | None) -> bool:
    """Whether the host takes longer to start a call than the device to do it: in a plain loop the device would idle."""
    return kernel is not None and call is not None and call.median > kernel.median
