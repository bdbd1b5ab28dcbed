"""What Metadata and its relatives say of topics and partitions, and how it becomes bytes cheaply.

Imports the services, `server.kafka.cluster_view` and the generated messages. Used by the handlers.
"""
