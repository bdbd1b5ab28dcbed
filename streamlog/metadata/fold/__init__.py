"""The fold: the state that results from applying the metadata's records in order.

Imports `metadata`'s interface and keys. Used by the checkpoints, which store that state, and by the
journal, which applies new records to it.
"""
