"""Kafka's wire protocol: pure functions over bytes, without sockets and services.

Imports `streamlog.errors` and `streamlog.runtime.buffers` alone. `streamlog.server.kafka` and tools
call it.
"""
