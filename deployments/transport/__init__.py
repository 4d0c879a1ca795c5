"""Core records over gRPC: codecs, status table, step loop, data-plane server and client. Knows no Ray."""
