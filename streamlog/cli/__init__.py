"""The command line: each command is one file, imported when it is called.

Imports whatever a command needs, when it is called. Run as `streamlog`.
"""
