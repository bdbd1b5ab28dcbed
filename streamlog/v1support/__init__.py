"""Errors and metadata keys that server and client share; imports `v1` and `errors` alone."""
