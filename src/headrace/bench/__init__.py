"""Benchmarks: what a step reads and computes, how long it takes, and what could be at best."""
