"""This server against its peers on the same weights; ``python -m benchmarks.serving``."""
