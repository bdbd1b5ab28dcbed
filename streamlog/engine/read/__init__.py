"""The read path: the tail cache, blocks of objects, read-ahead and the throttle of catch-up reads.

Imports `engine`'s configuration and metrics. Used by the engine, its streams and staging.
"""
