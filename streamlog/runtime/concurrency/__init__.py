"""Waiting and working at once: answers watched, background tasks, locks by key, gathering.

Imports the clock and progress of `runtime`. Used everywhere above.
"""
