"""What a task does: object ranges read and decoded into Arrow, or fetched from a node.

Imports plans and the cluster. Used by the source and by jobs.
"""
