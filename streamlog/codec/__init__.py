"""Kafka's record batches: compiled, and a plain twin.

Imports the ground. Used by log, client, server and the jobs on Spark.
"""
