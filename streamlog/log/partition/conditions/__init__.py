"""Conditions of appends, and the fencing token that some of them name.

Imports the log's API and `log.partition`. Used by `shared` and `unified`.
"""
