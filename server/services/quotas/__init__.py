"""Quotas of clients as administrators see them: described, and changed while nodes run.

Imports what quotas may be, and the ports of the log manager. Used by the listeners' handlers.
"""
