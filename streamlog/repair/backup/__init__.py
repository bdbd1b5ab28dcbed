"""`streamlog backup` and `restore`: the metadata in one file, and back.

Imports recover's hand-over. Used by the command line and the server.
"""
