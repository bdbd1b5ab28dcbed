"""The statistics job: counts, sizes and sketches of a topic's records.

Imports plans and reads. Used by the command line.
"""
