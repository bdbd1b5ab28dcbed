"""The files of a Kafka broker's log folder, bytes ↔ values: what Kafka 4.1 writes and reads.

Imports the errors and the codec's checksum. Used by `unified` and `log/partition`.
"""
