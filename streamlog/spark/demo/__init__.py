"""The demonstration: log lines through a streaming job, counted into a topic and into Parquet."""
