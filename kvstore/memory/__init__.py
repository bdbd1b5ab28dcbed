"""The KV store in memory: what is in it ends with the process.

Imports `kvstore`'s store and interface. Used by `streamlog.wiring` and tests.
"""
