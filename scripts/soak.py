"""Kills, damage and long searches; see benchmarks/soak.py. Writes what happened as JSON."""

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import soak
from nttzoo._util import provenance

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200, help="of writers of each kind (default: 200)")
    parser.add_argument("--mutations", type=int, default=1000, help="damaged networks (default: 1000)")
    parser.add_argument("--search-minutes", type=float, default=60, help="of a watched search (default: 60)")
    parser.add_argument("--seed", type=int, default=0, help="of all random choices (default: 0)")
    parser.add_argument("--out", required=True, help="the file to write")
    options = parser.parse_args()
    out = provenance.check_writable(options.out)
    limits = {"kills": options.kills, "mutations": options.mutations, "search_minutes": options.search_minutes}
    found = soak.run(**limits, seed=options.seed)
    provenance.write_json(out, found)
    print(json.dumps(found, indent=1))
