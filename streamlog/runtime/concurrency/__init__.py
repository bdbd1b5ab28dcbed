"""Concurrency: background tasks, keyed locks, byte semaphores, gathering, back-off, and the watch
over a store's answers.

Imports the clock and progress of `runtime`. Used by all packages above.
"""
