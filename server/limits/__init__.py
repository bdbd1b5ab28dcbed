"""What bounds a connection's requests: bytes in flight and requests in order.

Imports the metrics. Used by every listener.
"""
