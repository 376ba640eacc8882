"""`nttzoo device` as a script: see `python scripts/device.py --help`."""

import sys

from nttzoo.cli import main

if __name__ == "__main__":
    main(["device", *sys.argv[1:]])
