"""What every plug-in of tiered storage does: conformance classes to inherit, and segments for them.

Imports the API of tiered storage and the ground. Used by tests alone.
"""
