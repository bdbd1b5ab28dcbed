"""All that speaks Kafka's protocol: frames, dispatch by API, and a handler for each group of APIs.

Imports the composed services, the limits and `streamlog.kafka` (messages, pure bytes). Used by the
Kafka listener.
"""
