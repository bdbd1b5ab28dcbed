"""Merges of objects, and the collector that deletes those without live data.

Imports metadata, formats and stores. Used by the wiring, the server and the jobs on Spark.
"""
