"""Names of the gRPC metadata that clients may send with any call."""

CLIENT_ID = "streamlog-client-id"
"""Who calls, for metrics, logs and later quotas; at most 255 bytes."""
TRACE_ID = "streamlog-trace-id"
"""An id that goes into the log lines of the call; a W3C `traceparent` is understood too."""
TRACEPARENT = "traceparent"
