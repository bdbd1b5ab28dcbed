"""Mutants: one mistake each, put into the product, that a history has to find.

Imports the simulated world and histories. Used by `--mutants` and tests.
"""
