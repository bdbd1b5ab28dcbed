"""What a stream is to its users: plain values and protocols, no behaviour."""
