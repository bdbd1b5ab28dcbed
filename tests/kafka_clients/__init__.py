"""Kafka's own clients and tools against a node, and against a real Kafka for comparison.

Each client is a program in its own language (`programs/`) that runs the same cases (`cases.py`) and
checks what it sees by itself. It runs once against each broker, through a tap that notes what the
client asked and which errors it got (`tap.py`).
"""
