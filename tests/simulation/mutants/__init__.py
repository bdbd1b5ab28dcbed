"""Mutants: mistakes that are put into the engine one at a time, and that histories must find.

Imports the simulated world and histories. Used by `python -m tests.simulation` and tests.
"""
