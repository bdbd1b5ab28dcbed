"""What a unified log does to be cleaned: new segments take the place of old ones.

Imports `state`, `disk` and `read`. Used by UnifiedLog.
"""
