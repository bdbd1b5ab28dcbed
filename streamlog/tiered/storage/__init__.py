"""The plug-ins that keep the bytes of remote segments: in the object store, in a local folder as
Kafka's LocalTieredStorage lays it out, and in any file system of fsspec, HDFS among them.

It imports api, log/api, format, objectstore and the ground. Used by the wiring.
"""
