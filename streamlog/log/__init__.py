"""Topics and their partitions: logs on streams, or on any other storage.

Imports no engine: a medium that keeps the protocols of `streamlog.model` is enough.
Used by the wiring, and by the server through its ports.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamlog.runtime.exports import lazy_exports

if TYPE_CHECKING:
    from streamlog.log.api.abstract_log import AbstractLog as AbstractLog
    from streamlog.log.api.abstract_log import AbstractLogSegment as AbstractLogSegment
    from streamlog.log.api.abstract_log import LogAppend as LogAppend
    from streamlog.log.api.abstract_log import LogAppendInfo as LogAppendInfo
    from streamlog.log.api.abstract_log import LogFetch as LogFetch
    from streamlog.log.api.abstract_log import PartitionDescription as PartitionDescription
    from streamlog.log.api.abstract_log import ProducerDescription as ProducerDescription
    from streamlog.log.api.leadership import Leadership as Leadership
    from streamlog.log.api.log_factory import LogFactories as LogFactories
    from streamlog.log.api.log_factory import LogFactory as LogFactory
    from streamlog.log.api.log_factory import LogKind as LogKind
    from streamlog.log.manager import LogManager as LogManager
    from streamlog.log.opening import open_logs as open_logs
    from streamlog.model.partition import TopicPartition as TopicPartition

__all__ = [
    "AbstractLog",
    "AbstractLogSegment",
    "Leadership",
    "LogAppend",
    "LogAppendInfo",
    "LogFactories",
    "LogFactory",
    "LogFetch",
    "LogKind",
    "LogManager",
    "PartitionDescription",
    "ProducerDescription",
    "TopicPartition",
    "open_logs",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "AbstractLog": "streamlog.log.api.abstract_log",
        "AbstractLogSegment": "streamlog.log.api.abstract_log",
        "LogAppend": "streamlog.log.api.abstract_log",
        "LogAppendInfo": "streamlog.log.api.abstract_log",
        "LogFetch": "streamlog.log.api.abstract_log",
        "TopicPartition": "streamlog.model.partition",
        "PartitionDescription": "streamlog.log.api.abstract_log",
        "ProducerDescription": "streamlog.log.api.abstract_log",
        "Leadership": "streamlog.log.api.leadership",
        "LogFactories": "streamlog.log.api.log_factory",
        "LogFactory": "streamlog.log.api.log_factory",
        "LogKind": "streamlog.log.api.log_factory",
        "LogManager": "streamlog.log.manager",
        "open_logs": "streamlog.log.opening",
    },
)
