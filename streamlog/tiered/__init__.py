"""Tiered storage (KIP-405): closed segments of unified topics go to the object store.

`api` is what plug-ins implement; `metadata` and `storage` are those that come with this program;
`copying` moves and expires segments, `reading` serves offsets that are no longer local, and
`remote_log_manager` runs both; `unopened` stands for it in a tool on a stopped node's data. It
imports log/api, format, objectstore and the ground, and knows no kind of log. Used by the wiring
and the settings.
"""
