"""What Spark talks to: a running node, or the metadata and store of one that is offline.

Imports options. Used by plans, reads, the sink and jobs.
"""
