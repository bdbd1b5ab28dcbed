"""The object store in a folder: each object a file, durable before its name is there.

Imports `objectstore`'s interface. Used by its opening and the doctor.
"""
