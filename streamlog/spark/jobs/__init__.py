"""Bulk work on executors: functions of a Spark session, and commands under `streamlog spark`."""
