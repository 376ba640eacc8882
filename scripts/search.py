"""`nttzoo search` as a script: see `python scripts/search.py --help`."""

import sys

from nttzoo.cli import main

if __name__ == "__main__":
    main(["search", *sys.argv[1:]])
