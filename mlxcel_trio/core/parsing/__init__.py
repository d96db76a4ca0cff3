"""From model text to segments, incrementally: stop strings, markers, reasoning."""
