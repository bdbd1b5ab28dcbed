"""UnifiedLog: a partition's log in local files, byte for byte as Kafka keeps it.

Imports the log's API, `log.partition`, the codec and `format.kafka_files`. Used by the wiring,
through the factory, and by the command line.
"""
