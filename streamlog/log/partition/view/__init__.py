"""What readers of a partition see, and how much of it one fetch returns.

Imports the API and the rest of `log.partition`. Used by each kind of log.
"""
