"""The gRPC listener: protobuf to the services' requests and back.

Imports services and limits. Used by the listeners.
"""
