"""The journal: commits that append records, the follower that reads them, and the ids they need.

Imports checkpoints and the fold. Used by ownership, look-ups, compaction and the session.
"""
