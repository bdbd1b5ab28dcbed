"""Broker settings that change at run time: kept in the KV store, watched, put into force.

It imports `log/api` and `log/configs`. The log manager owns it; `log/topics` asks it for defaults.
"""
