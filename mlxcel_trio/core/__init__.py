"""What the server means: pure functions and state machines.

No await, clock, thread, log or tensor: time and randomness come in as arguments.
"""
