"""Small records of settings in the KV store, by name: cached, watched, changed by compare-and-set.

It imports the record's bytes. Used by what is kept so: settings of brokers, and of clients.
"""
