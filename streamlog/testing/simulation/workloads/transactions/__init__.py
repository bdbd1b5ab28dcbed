"""Transactions under clients: instances of transactional ids, zombies among them, and readers.

Imports the simulated world, the checkers, and what a server asks before it appends. Used by a
history.
"""
