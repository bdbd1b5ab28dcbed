"""Topics: their records in the KV store, their administration, and the cache of open logs.

Imports the API and `broker`. Used by the manager.
"""
