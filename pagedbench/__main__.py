"""`python -m pagedbench`."""

from pagedbench.cli.app import main

main()
