"""The Coordinator deployment: one session machine per generation, driven over gRPC."""
