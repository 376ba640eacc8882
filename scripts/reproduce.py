"""`nttzoo reproduce` as a script: see `python scripts/reproduce.py --help`."""

import sys

from nttzoo.cli import main

if __name__ == "__main__":
    main(["reproduce", *sys.argv[1:]])
