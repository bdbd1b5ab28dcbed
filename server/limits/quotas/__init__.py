"""Quotas of clients: what a client id may use of a node, and how long it is throttled for more.

Imports metrics and the ground. Called by the listeners, which charge requests, and by services.
"""
