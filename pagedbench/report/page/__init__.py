"""One self-contained HTML page for a run: works offline, loads nothing, escapes what users wrote.

`page.html_page` assembles it; `cards.py` (failures), `cells.py` (the table), `speed.py` (timings as SVG) and
`markup.py` (escaping) make its parts; the form is in `assets/`.
"""
