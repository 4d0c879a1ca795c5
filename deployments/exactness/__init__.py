"""Shows on a running system that its output is the target's: identity, law, counters, and re-scoring of finished requests."""
