"""Checks of what the engine relies on: stores, disk, machine. Nothing here opens anything.

Imports the store, KV and disk protocols, and formats. Used by `streamlog doctor`.
"""
