"""What several tests share: real tools, real nodes."""
