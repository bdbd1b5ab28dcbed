"""Concurrency: background tasks, work in steps, keyed locks, byte semaphores, gathering, back-off,
and the watch over a store's answers.

Imports the clock, progress and offload of `runtime`. Used by all packages above.
"""
