"""The fold: the state that the metadata's records make, one record after another.

Imports `metadata`'s interface and keys. Used by the checkpoints, which store that state, and by the
journal, which applies new records to it.
"""
