"""streamlog: a shared log on object storage."""
