"""What all of Kafka's messages share: primitives, the table of APIs, headers, error codes.

Imports errors and buffers alone. Used by the generated messages and by `server.kafka`.
"""
