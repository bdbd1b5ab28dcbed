"""The meta stream: the records in which a SharedLog keeps its segments, epochs and producers.

Imports `log.partition`. Used by `log.shared` alone.
"""
