"""The services of a node: requests in plain values, without gRPC or generated code.

Imports log, engine protocols, metrics and the request context. Composed by `server.composition`,
called by every listener.
"""
