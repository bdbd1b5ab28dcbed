"""Write-ahead log folders of nodes that do not run: what is in them, and its upload.

Imports the WAL and the engine's opening. Used by the command line.
"""
