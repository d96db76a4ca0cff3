"""Shipped fakes for tests of this package and of programs that embed or call it.

``python -m mlxcel_trio.testing --script FILE`` serves answers from a file through the real server; the file's
format is described in :mod:`mlxcel_trio.testing.script`.
"""
