"""Kafka's clients through an outage of the store or of the metadata, which passes by itself.

`python -m tests.kafka_clients.outages` (`make outage-kafka`) is the long one, with the clients'
own time-outs; `test_outages.py` the short one. A run is: `world.py` (a node in a process of its
own, and what can be taken from it), `clients.py` (the clients' programs), `run.py` (the order of
events), `checks.py` and `codes.py` (what must hold), `report.py` (what was seen).
"""
