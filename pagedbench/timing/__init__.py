"""Clocks, sampling, roofline, statistics. Knows nothing of attention but bytes and FLOPs.

`measure` times one thing, `interleave` several side by side; `peaks` finds the limits of the device they ran on.
"""
