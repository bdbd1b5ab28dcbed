"""Alert rules and dashboard as a real Prometheus takes them: `make test-prometheus`.

Imports the client, the server's settings and `tests.support`. Used by nobody.
"""
