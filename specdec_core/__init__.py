"""Pure core of specdec: sessions, rules, sampling, drafters, models and their KV; no Ray, gRPC, files or clock."""

__version__ = "0.1.0"
