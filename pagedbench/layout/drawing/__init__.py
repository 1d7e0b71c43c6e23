"""The guide's drawings for any batch, as lines of text: what `pagedbench show` prints. No torch, no terminal.

`page.draw` puts the page together; `strips.py`, `grid.py` and `writes.py` draw its parts with what `words.py` holds.
"""
