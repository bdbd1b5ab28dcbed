"""Produce and fetch: the services that carry records.

Imports the interfaces in `services/ports.py`, and metrics. Used by composition and listeners.
"""
