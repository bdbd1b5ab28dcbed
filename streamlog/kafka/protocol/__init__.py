"""What all of Kafka's messages share: primitives, the table of APIs, headers, error codes."""
