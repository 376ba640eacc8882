"""`nttzoo bench` as a script: see `python scripts/bench.py --help`."""

import sys

from nttzoo.cli import main

if __name__ == "__main__":
    main(["bench", *sys.argv[1:]])
