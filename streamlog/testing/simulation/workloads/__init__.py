"""Workloads: what the users of a simulated cluster do, and what they remember of its answers.

Imports the simulated world and the checker. Used by a history.
"""
