"""What a SharedLog knows of its records: segments, tail, time index, recovery, searches.

Imports the meta stream. Used by `log.shared` alone.
"""
