"""The collector: deletes objects that no metadata names any more, under its guard.

Imports nothing else of compaction. Used by `streamlog.wiring`.
"""
