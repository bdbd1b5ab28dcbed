"""Handlers: Kafka's messages to the services and back, one file for each group of APIs.

Imports the services and `server.kafka.call`; no handler imports another one. `table` joins them for
the listener.
"""
