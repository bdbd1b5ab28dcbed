"""Spark reads topics: a data source in pure Python. Nothing here is imported by the core.

Imports `reading` for objects, `client` for a node. Used by Spark, which finds it through
`pyspark_streamlog`, and by the commands of `streamlog spark`.
"""
