"""What is written to a log folder's files, and in which order.

Imports `format.kafka_files` and `runtime.disk`. Used by the rest of `unified`.
"""
