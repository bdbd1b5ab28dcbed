"""The list: how to call each parser, valid samples, its errors, how its checksums are mended."""

from __future__ import annotations

from tests.fuzz import (
    codec_parsers,
    format_parsers,
    kafka_parsers,
    log_parsers,
    metadata_parsers,
    server_parsers,
)
from tests.fuzz.parser import Parser

ALL: tuple[Parser, ...] = (
    *codec_parsers.PARSERS,
    *format_parsers.PARSERS,
    *metadata_parsers.PARSERS,
    *log_parsers.PARSERS,
    *server_parsers.PARSERS,
    *kafka_parsers.PARSERS,
)
BY_NAME = {parser.name: parser for parser in ALL}
assert len(BY_NAME) == len(ALL)
