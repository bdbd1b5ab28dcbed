"""What a partition's log of any kind needs: leader epochs, batch metadata, validation, waiters.

Imports the API. Knows no streams. Used by `log.shared`.
"""
