"""Connections of the Kafka listener: frames in, answers out in their order, all of it bounded.

Imports the dispatcher and the limits; knows no API. Used by the Kafka listener.
"""
