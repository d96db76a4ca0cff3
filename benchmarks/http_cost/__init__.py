"""What a request and an event cost in CPU time; ``python -m benchmarks.http_cost``."""
