"""Where the core meets Ray, gRPC, files, environment and time."""
