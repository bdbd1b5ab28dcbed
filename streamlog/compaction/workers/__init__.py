"""Where jobs run: in a process of their own, or with a worker that asks the node for them.

Imports executors and the plan. Used by the compactor and the server.
"""
