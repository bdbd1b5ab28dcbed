"""Listeners: the addresses of a node, each with its protocol, from `bind` to `stop`.

Imports `server.grpc` and the composed services. Used by the node and the node's server.
"""
