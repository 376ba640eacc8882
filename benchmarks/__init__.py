"""Speed against peers, always as a ratio measured in the same run: what scripts/bench.py calls."""
