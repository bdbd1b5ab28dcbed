"""Listeners: the addresses of a node, each with its protocol, from `bind` to `stop`.

Imports `server.grpc`, `server.kafka` and the composed services. Used by the node and
its server.
"""
