"""Use cases: what the server does for a request. Knows protocol, core and engine, and no HTTP."""
