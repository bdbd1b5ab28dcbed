"""A transactional id as a value: its state, what calls make of it, its record. Pure.

Imports `api` alone of the coordinator. Called by its partitions.
"""
