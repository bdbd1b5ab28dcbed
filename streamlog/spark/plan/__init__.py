"""Plans of a read: offsets of both ends, partitions of rows, and the session that makes them.

Imports the cluster and options. Used by the source and by jobs.
"""
