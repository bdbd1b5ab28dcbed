"""What gRPC's library does by itself, and how this node copes: connections, calls that ended.

Imports grpc and the listeners' common ground. Used by the server and its calls.
"""
