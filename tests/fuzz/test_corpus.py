"""Every file of the corpus, as its name says."""

from __future__ import annotations

import pytest

from tests.fuzz.parser import Parser, Refused
from tests.fuzz.parsers import ALL
from tests.fuzz.regressions import READ, REFUSED
from tests.fuzz.write_corpus import CORPUS

FILE_BYTES_MAX = 24 << 10


@pytest.mark.parametrize("parser", ALL, ids=lambda parser: parser.name)
def test_files_do_as_their_names_say(parser: Parser) -> None:
    paths = sorted((CORPUS / parser.name).iterdir())
    assert any(path.name.startswith("valid-") for path in paths)
    for path in paths:
        data = path.read_bytes()
        assert len(data) <= FILE_BYTES_MAX, path
        found, expected = parser.attempt(data), path.name.partition("-")[0]
        assert expected in ("valid", "refused", "any"), path
        if expected != "any":
            assert isinstance(found, Refused) == (expected == "refused"), path


def test_every_regression_and_nothing_foreign_is_there() -> None:
    names = {parser.name for parser in ALL}
    assert {folder.name for folder in CORPUS.iterdir()} == names
    for found, kind in ((REFUSED, "refused"), (READ, "any")):
        for parser, files in found.items():
            for name, data in files.items():
                path = CORPUS / parser / f"{kind}-{name}.bin"
                assert path.stat().st_size == len(data), path
