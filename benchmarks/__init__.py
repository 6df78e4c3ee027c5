"""Figures side by side with peers: `python -m benchmarks` prints them and writes build/bench.json."""
