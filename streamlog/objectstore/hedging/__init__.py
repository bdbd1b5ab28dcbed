"""Hedged requests: a second request when the first is late, and whichever answers first.

Imports `objectstore`'s interface, configuration and metrics. Used by its opening.
"""
