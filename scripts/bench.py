"""Our speed against peers: see `python scripts/bench.py --help`. It runs from a checkout only."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.__main__ import main

if __name__ == "__main__":
    main()
