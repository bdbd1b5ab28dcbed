"""The metadata's keys, one file per type: its bytes, who changes it and when, what absence means.

Keys are `/sl/<cluster>/` + letter + `/` + fixed-width big-endian integers, so that they sort by
number. Every value starts with a version byte; integers in values are little-endian. A version
never changes: new fields make a new version, and old versions stay readable.
Imports formats and the ground. Used by all of `metadata`, and by repair.
"""
