"""`streamlog recover`: metadata made anew from what the object store holds.

Imports `repair`'s findings and view. Used by the command line, and by restore for the hand-over.
"""
