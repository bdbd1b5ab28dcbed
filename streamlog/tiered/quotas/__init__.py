"""Quotas of the remote tier (KIP-956): bytes a second that a node copies, and that it reads back.

It imports the ground alone. Used by the manager's opening.
"""
