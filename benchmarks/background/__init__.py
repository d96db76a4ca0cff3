"""What jobs cost their clients and the streams beside them; ``python -m benchmarks.background``."""
