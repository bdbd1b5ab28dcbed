"""Reads of offsets that are no longer local: chunks of segments in memory, indexes in files, and
the look-ups over both. It imports api, format, log/api and the
ground. Used by the manager."""
