"""The upload path: a closed group becomes an object in the store, and a commit.

Imports the append path's groups. Used by the engine only.
"""
