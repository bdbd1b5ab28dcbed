"""The way of an append: the writer, what makes it visible, and the meta records that follow it.

Imports `log.partition` and the rest of `log.shared` below SharedLog. Used by SharedLog alone.
"""
