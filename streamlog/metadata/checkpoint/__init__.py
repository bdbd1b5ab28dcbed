"""Checkpoints: the fold's state as files in the object store, so that opening reads few records.

Imports the fold and `metadata`'s interface. Used by the journal, by look-ups and by repair.
"""
