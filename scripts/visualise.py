"""`nttzoo visualise` as a script: see `python scripts/visualise.py --help`."""

import sys

from nttzoo.cli import main

if __name__ == "__main__":
    main(["visualise", *sys.argv[1:]])
