"""Cleaning of compacted logs, as Kafka's LogCleaner does it: the newest record of each key stays.

Imports the codec, the log's API and the runtime. Knows no streams and no files. Used by LogManager,
which owns the cleaner (docs/cleaner.md).
"""
