"""Listeners: addresses checked and opened, gRPC and HTTP started, drained and stopped.

Imports `server.grpc`. Used by the node and the service.
"""
