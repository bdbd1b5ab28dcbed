"""The scrub job: every object read and checked against its checksums.

Imports reads. Used by the command line.
"""
