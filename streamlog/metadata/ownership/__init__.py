"""Ownership: a node's registration, its lease, the seal of its tenure, and the transfer of streams.

Imports the journal. Used by compaction's tenure and the session.
"""
