"""What a shared log does to be cleaned: new slices of streams take the place of old ones.

Imports `meta`, `state` and `durable` of `log.shared`. Used by SharedLog alone (docs/cleaner.md).
"""
