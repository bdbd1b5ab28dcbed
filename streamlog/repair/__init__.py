"""Looking after data at rest: fsck, recover, backup and restore; on the KV and store protocols.

Imports the metadata, formats, stores, the WAL and parts of the engine. Used by the command line,
the server (backups), `reading` and Spark's jobs.
"""
