"""What a partition's log of any kind needs: checks, producer state, leader epochs, acks, reading.

Imports the API. Knows no streams. Used by each kind of log, and by retention in the manager.
"""
