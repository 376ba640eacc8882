"""Kills, damage and a long search; see benchmarks/soak. Figures are added to those that FILE has already."""

import argparse
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import soak
from nttzoo._util import provenance

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60, help="how long; 0 only writes the report (default: 60)")
    parser.add_argument("--seed", type=int, default=0, help="of all random choices (default: 0)")
    parser.add_argument("--out", required=True, metavar="FILE", help="JSON file to write or to add to")
    parser.add_argument("--report", metavar="PAGE", help="Markdown file to write")
    parser.add_argument("--search-only", action="store_true", help="only watch a search, in place of those in FILE")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # leaves no process behind
    out = provenance.check_writable(options.out)
    earlier = provenance.read_json(out) if out.exists() else None
    origin = provenance.origin()
    if options.search_only:
        if not earlier:
            parser.error(f"--search-only adds to a file of an earlier soak; {out} does not exist.")
        earlier = soak.watch_search(minutes=options.minutes, earlier=earlier, origin=origin)
        provenance.write_json(out, earlier)
    elif options.minutes or not earlier:
        found = soak.run(
            minutes=options.minutes,
            seed=options.seed,
            earlier=earlier,
            save=lambda content: provenance.write_json(out, {**content, **origin}),
        )
        earlier = {**found, **origin}
    if options.report:
        page = provenance.check_writable(options.report)
        soak.write_report(page, earlier, out.name)
        print(page.read_text())
