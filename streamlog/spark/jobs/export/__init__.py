"""The export job: a topic's records into Parquet files with a manifest, and back.

Imports plans and reads. Used by the command line and by the Iceberg job.
"""
