"""Coordinators: state about clients that is kept in logs of its own. Today: transactions.

`api` has what services call. Imports the log layer (AbstractLog, topics) and what lies below it.
Called by the wiring, which builds it, and by the server's services. docs/transactions.md.
"""
