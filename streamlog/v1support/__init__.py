"""Errors and metadata keys of gRPC that server and client share.

Imports `v1` and `errors` alone. Used by the server and the client.
"""
