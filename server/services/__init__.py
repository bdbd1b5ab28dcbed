"""What the node does for its clients, in plain values: knows neither gRPC nor the generated code."""
