"""Look-ups: where the data of a stream lies, which objects live, and where they are.

Imports the journal and checkpoints. Used by compaction and the session.
"""
