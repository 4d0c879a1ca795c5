"""Benchmarks: each writes its rows and where they come from to ``benchmarks/results``."""
