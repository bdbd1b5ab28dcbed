"""Workloads: what the clients of a simulated cluster do, and the models of what they saw.

Imports the simulated world and the checker. Used by a history.
"""
