"""The Iceberg job: a topic's records appended to a table, each commit once.

Imports the export job. Used by the command line.
"""
