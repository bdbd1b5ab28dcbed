"""What compaction asks of the metadata: its tenure, its claims, pins, and garbage.

Imports ownership, look-ups and the journal. Used by the session.
"""
