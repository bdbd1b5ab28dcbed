"""The way of an append to its place in the log: single ones, runs, and staged ones.

Imports `log.partition` and the rest of `log.shared` below SharedLog. Used by SharedLog alone.
"""
