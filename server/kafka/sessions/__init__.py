"""Fetch sessions (KIP-227): what a consumer reads is kept between its fetches.

Imports services and the protocol's error codes. `handlers/fetch.py` uses it.
"""
