"""The wire of the Responses API: msgspec structs and their codec, and nothing else.

Meaning (limits, defaults, what may be combined) belongs to ``mlxcel_trio.core``.
"""
