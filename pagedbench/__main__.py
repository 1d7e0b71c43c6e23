"""`python -m pagedbench`: the command line where the script is not on the path."""

from pagedbench.cli.app import main

if __name__ == "__main__":
    main()
