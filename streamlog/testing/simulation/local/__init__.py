"""Histories of topics in local files, with and without a remote tier: nodes that have a log folder
and no engine.

Imports the simulated world, the checker's words, clients with numbered records, and what such a
node is made of: logs, unified logs, tiers. Used by the simulator's command line and by tests.
"""
