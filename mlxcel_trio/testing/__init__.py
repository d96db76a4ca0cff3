"""Shipped fakes for tests of this package and of its embedders."""
