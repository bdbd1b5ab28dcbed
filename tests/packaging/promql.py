"""Which metrics, labels and ranges a PromQL expression names: enough of the language for that."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_TOKEN = re.compile(
    r"""
    (?P<space>\s+)
    | (?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
    | (?P<duration>\d+(?:ms|[smhdwy])(?![a-zA-Z_])|\$__rate_interval)
    | (?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?![a-zA-Z_]))
    | (?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)
    | (?P<operator>=~|!~|==|!=|>=|<=|[-+*/%^=<>(){}\[\],])
    """,
    re.VERBOSE,
)
AGGREGATIONS = frozenset({"sum", "max", "min", "avg", "count", "topk", "bottomk", "quantile"})
FUNCTIONS = frozenset(
    {
        "rate",
        "increase",
        "irate",
        "delta",
        "histogram_quantile",
        "time",
        "vector",
        "abs",
        "clamp_min",
    }
)
_OPERATORS = frozenset({"and", "or", "unless", "bool", "offset", "group_left", "group_right"})
_LABEL_LISTS = frozenset({"by", "without", "on", "ignoring"})
_CLOSING = {"(": ")", "{": "}", "[": "]"}


@dataclass
class Names:
    """`selected`: metric → labels that its selectors name; `grouped`: labels of by, on, ….

    `ranged`: metrics that stand before a range, as rate and increase need them."""

    selected: dict[str, set[str]] = field(default_factory=dict)
    grouped: set[str] = field(default_factory=set)
    ranged: set[str] = field(default_factory=set)


def names_in(expression: str) -> Names:
    """Errors: ValueError for what is no PromQL, or more of it than is known here."""
    tokens = _tokens(expression)
    found = Names()
    at = 0
    expected: list[str] = []
    while at < len(tokens):
        kind, text = tokens[at]
        following = tokens[at + 1][1] if at + 1 < len(tokens) else ""
        if kind == "operator" and text in _CLOSING:
            if text != "(":
                raise ValueError(f"{text} stands behind no metric in {expression!r}")
            expected.append(_CLOSING[text])
        elif kind == "operator" and text in _CLOSING.values():
            if not expected or expected.pop() != text:
                raise ValueError(f"an unmatched {text} in {expression!r}")
        elif kind == "name" and text in _LABEL_LISTS:
            labels, at = _until(tokens, at + 1, "(", ")", expression)
            found.grouped |= {label for _, label in labels if label != ","}
            continue
        elif kind == "name" and text not in _OPERATORS:
            if following == "(" or text in AGGREGATIONS:
                if text not in FUNCTIONS | AGGREGATIONS:
                    raise ValueError(f"unknown function {text} in {expression!r}")
            else:
                at = _selector(tokens, at, found, expression)
                continue
        at += 1
    if expected:
        raise ValueError(f"{expected[-1]} is missing in {expression!r}")
    return found


def _selector(tokens: list[tuple[str, str]], at: int, found: Names, expression: str) -> int:
    metric = tokens[at][1]
    labels = found.selected.setdefault(metric, set())
    at += 1
    if at < len(tokens) and tokens[at][1] == "{":
        matchers, at = _until(tokens, at, "{", "}", expression)
        while matchers:
            if [kind for kind, _ in matchers[:3]] != ["name", "operator", "string"]:
                raise ValueError(f"a broken label matcher in {expression!r}")
            if matchers[1][1] not in ("=", "!=", "=~", "!~"):
                raise ValueError(f"a broken label matcher in {expression!r}")
            labels.add(matchers[0][1])
            matchers = matchers[4:]
    if at < len(tokens) and tokens[at][1] == "[":
        inside, at = _until(tokens, at, "[", "]", expression)
        if [kind for kind, _ in inside] != ["duration"]:
            raise ValueError(f"a broken range in {expression!r}")
        found.ranged.add(metric)
    return at


def _until(
    tokens: list[tuple[str, str]], at: int, opening: str, closing: str, expression: str
) -> tuple[list[tuple[str, str]], int]:
    """What stands between two brackets, and the position behind them."""
    if at >= len(tokens) or tokens[at][1] != opening:
        raise ValueError(f"{opening} is missing in {expression!r}")
    for end in range(at + 1, len(tokens)):
        if tokens[end] == ("operator", closing):
            return tokens[at + 1 : end], end + 1
    raise ValueError(f"{closing} is missing in {expression!r}")


def _tokens(expression: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    at = 0
    while at < len(expression):
        match = _TOKEN.match(expression, at)
        if match is None:
            raise ValueError(f"what is {expression[at : at + 20]!r} in {expression!r}?")
        if match.lastgroup != "space":
            found.append((str(match.lastgroup), match[0]))
        at = match.end()
    return found
