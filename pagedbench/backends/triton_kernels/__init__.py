"""Paged attention in Triton: kernels, the rules that choose their settings, and the function that launches them.

`attention.py` is the kernel, `combine.py` joins the partial results of a sequence that was split, `heuristics.py`
chooses tiles and splits from the shape of the batch, `launch.py` puts them together. Nothing is imported here: Triton
decides when a kernel is *defined* whether it is compiled or interpreted, so the caller says when that happens.
"""
