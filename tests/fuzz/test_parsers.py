"""Damaged samples, the same with checksums mended, and noise: values or typed errors, in bounds.

FUZZ_EXAMPLES sets how many of each (default 30; then, and only then, they are not the same ones in
every run): `make fuzz`.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.examples import FUZZ
from tests.fuzz.mutations import damaged
from tests.fuzz.parser import Parser, Refused
from tests.fuzz.parsers import ALL

each_parser = pytest.mark.parametrize("parser", ALL, ids=lambda parser: parser.name)


@each_parser
def test_samples_are_read(parser: Parser) -> None:
    for sample in parser.samples:
        assert not isinstance(parser.attempt(sample), Refused)
        if parser.mend is not None:
            assert parser.mend(sample) == sample


@each_parser
@FUZZ
@given(data=st.data())
def test_damage(parser: Parser, data: st.DataObject) -> None:
    bad = data.draw(damaged(parser.samples))
    found = parser.attempt(bad)
    if parser.is_sealed and not isinstance(found, Refused):
        assert found in [parser.attempt(sample) for sample in parser.samples]
    if parser.mend is not None:
        parser.attempt(parser.mend(bad))


@each_parser
@FUZZ
@given(noise=st.binary(max_size=300))
def test_noise(parser: Parser, noise: bytes) -> None:
    parser.attempt(noise)
    if parser.mend is not None:
        parser.attempt(parser.mend(noise))
