"""What all listeners share: bounds on connections, requests and bytes in flight, answers in order,
draining.

Imports the metrics and the request context. Used by every listener; knows no protocol.
"""
