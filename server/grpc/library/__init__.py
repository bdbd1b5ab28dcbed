"""What gRPC's library does by itself, and how this node copes: connections, calls that ended.

Imports gRPC alone. Used by `server.grpc`.
"""
