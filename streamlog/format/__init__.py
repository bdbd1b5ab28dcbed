"""Bytes of files and records, pure functions.

Imports the model and the ground. Used by whatever stores or reads objects.
"""
