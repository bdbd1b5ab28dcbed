"""Transactions on Kafka's wire: one file for each thing that a client or a tool wants of them.

Imports `services/transactions.py`; the table of handlers joins its routes. InitProducerId and
Produce have files of their own beside this folder, since producers without transactions use them,
too.
"""
