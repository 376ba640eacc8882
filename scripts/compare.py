"""`nttzoo compare` as a script: see `python scripts/compare.py --help`."""

import sys

from nttzoo.cli import main

if __name__ == "__main__":
    main(["compare", *sys.argv[1:]])
