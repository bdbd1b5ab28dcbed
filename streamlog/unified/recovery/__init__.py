"""Makes the state of a unified log from its folder, and the snapshots that shorten that.

Imports `state`, `disk`, the codec and `log.partition`. Used by LogFolder and UnifiedLog.
"""
