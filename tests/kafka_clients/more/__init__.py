"""What `make test-kafka` runs, and each change does not: more clients, Kafka's tools, Spark."""
