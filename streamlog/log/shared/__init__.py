"""SharedLog: a partition's log in the streams of a shared store.

Imports the API and `log.partition`. Used by `log.opening`, through the factory alone.
"""
