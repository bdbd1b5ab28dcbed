"""What a SharedLog knows of its records: segments, tail, producers, time index, recovery.

Imports the meta stream. Used by `log.shared` alone.
"""
