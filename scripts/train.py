"""`nttzoo train` as a script: see `python scripts/train.py --help`."""

import sys

from nttzoo.cli import main

if __name__ == "__main__":
    main(["train", *sys.argv[1:]])
