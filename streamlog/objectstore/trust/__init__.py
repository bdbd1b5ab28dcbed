"""Whether a store can be trusted: six requests before it is used, under keys that are removed.

Imports `objectstore`'s interface. Used by `streamlog.wiring` and the doctor.
"""
