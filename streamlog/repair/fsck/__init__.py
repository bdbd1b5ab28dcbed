"""`streamlog fsck`: bucket, metadata and objects held against one another.

Imports `repair`'s findings and view. Used by the command line and tests.
"""
