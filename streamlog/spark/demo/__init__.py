"""The demonstration: log lines through a streaming job, counted into a topic and into Parquet.

Imports Spark alone, and reads as a user would. Used by `streamlog spark demo`.
"""
