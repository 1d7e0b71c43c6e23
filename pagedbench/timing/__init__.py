"""How fast? Clocks, sampling, roofline, statistics. Knows nothing of attention but bytes and FLOPs."""
