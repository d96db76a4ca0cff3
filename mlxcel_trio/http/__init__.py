"""HTTP: the only room that knows quart and hypercorn."""
