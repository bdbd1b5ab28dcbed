"""Patterns of transactional ids: as Python's where both have the syntax, and always fast."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as some

from streamlog.coordinator.patterns import Pattern
from streamlog.errors import Invalid

letters = some.sampled_from([*"ab.", r"\d", r"\W", r"\.", "[ab]", "[^a-b]", "[b-]", "[\\d-]"])
signs = some.sampled_from(["*", "+", "?", "{2}", "{1,}", "{0,2}", "{0}", "*?"])
patterns = some.recursive(
    some.one_of(letters, some.just("")),
    lambda inner: some.one_of(
        some.builds("({}){}".format, inner, signs),
        some.builds("(?:{}|{})".format, inner, inner),
        some.builds("{}{}".format, inner, inner),
    ),
    max_leaves=8,
)


@given(patterns, some.text("ab-1.", max_size=8))
def test_a_pattern_matches_what_pythons_matches(pattern: str, text: str) -> None:
    expected = re.compile(pattern).fullmatch(text) is not None
    assert Pattern(pattern).matches(text) == expected


def test_a_pattern_that_takes_others_for_ever_is_fast() -> None:
    assert not Pattern("(a+)+(a|a)*b").matches("a" * 30_000)
    assert Pattern("^(app-.*){1,20}$").matches("app-" * 5_000)


@pytest.mark.parametrize(
    "wrong",
    [
        *("(", ")", "a)", "[a", "*a", "a**", "a{2}{3}", "a{2,1}", "a{x}", "\\", "(?=a)", r"\1"),
        *("a{2000}", "(" * 60 + ")" * 60, "((a{50}){50}){50}"),
        pytest.param("a{" + "9" * 5000 + "}", id="least of 5000 digits"),
        pytest.param("a{1," + "9" * 5000 + "}", id="most of 5000 digits"),
    ],
)
def test_what_is_no_pattern_is_refused(wrong: str) -> None:
    with pytest.raises(Invalid):
        Pattern(wrong)
