"""The Spark side against Spark's own Kafka source and sink, and against Parquet."""
