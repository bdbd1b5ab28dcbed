"""Reading topics past a node: out of objects, at the places that a node or the metadata names.

Spark reaches stores, metadata and bytes of objects through this package alone. Imports the wiring,
repair's view of the metadata, the log's records, the metadata of tiers and the formats; knows
nothing of Spark. `remote_metadata` reads the topic of remote segments.
`offline` looks at metadata without a node, `locating` and `streams` at places in objects, `blocks`
reads them, `stores` opens stores. Used by Spark and the command line.
"""
