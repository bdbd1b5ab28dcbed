"""Spark reads topics: a data source in pure Python. Nothing here is imported by the core."""
