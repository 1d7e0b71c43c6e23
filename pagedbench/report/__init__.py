"""Records for people: tables, charts, HTML, JUnit, Markdown."""
