"""Quotas of the remote tier (KIP-956). It imports the ground alone. Used by the wiring."""
