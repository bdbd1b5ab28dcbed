"""One file for each command of `streamlog`, and nothing else.

Imports what is beside it in `cli`. Loaded by `cli.main` when its command is called.
"""
