"""The compaction job: the node's compaction jobs carried out by Spark's tasks.

Imports reads. Used by the command line.
"""
