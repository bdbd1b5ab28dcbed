"""What Kafka's own integration tests of tiered storage go through, through librdkafka and a node.

Imports streamlog, tests.support and confluent_kafka. Used by nobody.
"""
