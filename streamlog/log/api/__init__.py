"""What a log is to its callers: AbstractLog, its configuration, environment, records and metrics.

Imports `configs` alone of `log`. Used by every other part of it and by the server.
"""
