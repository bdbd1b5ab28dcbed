"""Benchmarks of Kafka's protocol: this node, a bare server, gRPC and Apache Kafka, in turns."""
