"""Benchmarks: what a step reads and computes, how long it takes, and what this machine could do at best."""
