"""`nttzoo publish` as a script: see `python scripts/publish.py --help`."""

import sys

from nttzoo.cli import main

if __name__ == "__main__":
    main(["publish", *sys.argv[1:]])
