"""What the server remembers and for how long: one store for responses, one for conversations.

A store maps keys (owner and id) to entries. An entry has a value, opaque here, and a transcript, which it may
share with other entries. It goes when it is as old as its TTL, or when others need its place: the number of
entries and their memory are bounded, and what was not used for longest goes first. No entry is harmed when
another one goes.

Memory is approximate: what the caller says a value takes, the items of transcripts, and a fixed overhead for
each thing that is kept. A part of a transcript counts once, from the first entry that holds it until the last
one goes. The ledger counts, and it finds the items that are held by their ids.

Owners (digests of API keys, or ``None`` on a server without keys) do not see each other: the same id under
two owners is two entries.

Nothing here reads a clock. ``now`` is in seconds since any fixed moment, such as ``trio.current_time()``, and
never goes back. Nothing here is meant to be shared between threads.
"""

from mlxcel_trio.core.store.bounded import ENTRY_OVERHEAD_BYTES, BoundedStore, Entry, Key, StoreLimits

__all__ = ["ENTRY_OVERHEAD_BYTES", "BoundedStore", "Entry", "Key", "StoreLimits"]
