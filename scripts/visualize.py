"""`nttzoo visualize` as a script: see `python scripts/visualize.py --help`."""

import sys

from nttzoo.cli import main

if __name__ == "__main__":
    main(["visualize", *sys.argv[1:]])
