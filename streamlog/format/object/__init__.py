"""Bytes of data objects: header, blocks, index and footer.

Pure. Imports `format`'s rows. Used by the engine, compaction, repair and Spark.
"""
