"""Looking after data at rest: fsck, recover, backup and restore; on the KV and store protocols."""
