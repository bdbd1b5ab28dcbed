"""Bulk work on executors: functions of a Spark session, and commands under `streamlog spark`.

Each imports plans and reads; compaction and scrub import parts of the engine, too. Used by users
and by the command line.
"""
