"""Benchmarks of this project; README.md beside this file says how to run them."""
