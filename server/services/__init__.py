"""What the node does for its clients, in plain values: no gRPC, no generated code."""
