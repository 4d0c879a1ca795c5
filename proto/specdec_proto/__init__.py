"""The wire format of specdec: protobuf messages and gRPC stubs, versioned by subpackage."""
