"""Segments on their way to the remote tier, and out of it.

It imports api, log/api and the ground. Used by the manager.
"""
