"""Everything that touches Ray, gRPC, files, the environment and time."""
