"""The KV store on RocksDB, in a folder of the local disk, and the repair of its torn log.

Imports `kvstore`'s store and interface. Used by `streamlog.wiring` and repair.
"""
