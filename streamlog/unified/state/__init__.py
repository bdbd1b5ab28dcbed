"""What a unified log knows of its segments, and what a batch changes of it. No I/O.

Imports `format.kafka_files` and `log.partition`. Used by the rest of `unified`.
"""
