"""Regular expressions that match in linear time: a client's pattern cannot hold up the node.

    c  \\c  .  \\d \\D \\w \\W \\s \\S  [a-z] [^a-z]    one character
    x* x+ x? x{m} x{m,} x{m,n}  xy  x|y  (x) (?:x)    as everywhere; ? behind them: nothing
    ^ $                                               nothing: a pattern matches whole texts

The syntax that RE2, and with it Kafka's tools, share with other kinds; look-around and references
back to groups, which need other machines, do not exist there either. A pattern becomes a machine of
steps; a text is matched by the set of steps that it can be at, and sets that were met are kept.
"""

from __future__ import annotations

from collections.abc import Callable

from streamlog.errors import Invalid

STEPS_MAX = 1000
SETS_MAX = 2000
DEPTH_MAX = 50
DIGITS_MAX = 9
"""Of a repetition's bound: Python makes no number of thousands of digits."""

Test = Callable[[str], bool]
_Fragment = tuple[int, list[int]]
"""The step where it begins, and those whose way on is open."""
_Set = frozenset[int]

_CLASSES: dict[str, Test] = {
    "d": lambda one: one.isascii() and one.isdigit(),
    "w": lambda one: one.isascii() and (one.isalnum() or one == "_"),
    "s": lambda one: one in " \t\n\r\f\v",
}
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v"}


class Pattern:
    """A compiled pattern. Errors: Invalid."""

    def __init__(self, text: str) -> None:
        parser = _Parser(text)
        start, ends = parser.whole()
        self._tests, self._ways = parser.tests, parser.ways
        self._final = parser.step(None)
        parser.lead(ends, self._final)
        self._start = self._reached([start])
        self._next: dict[tuple[_Set, str], _Set] = {}

    def matches(self, text: str) -> bool:
        """Whether the pattern is one for the whole text."""
        at = self._start
        for one in text:
            following = self._next.get((at, one))
            if following is None:
                following = self._after(at, one)
                if len(self._next) >= SETS_MAX:
                    self._next.clear()
                self._next[at, one] = following
            if not following:
                return False
            at = following
        return self._final in at

    def _after(self, at: _Set, one: str) -> _Set:
        ways: list[int] = []
        for step in at:
            test = self._tests[step]
            if test is not None and test(one):
                ways += self._ways[step]
        return self._reached(ways)

    def _reached(self, todo: list[int]) -> _Set:
        """With the steps that are reached without a character."""
        reached: set[int] = set()
        while todo:
            step = todo.pop()
            if step not in reached:
                reached.add(step)
                if self._tests[step] is None:
                    todo += self._ways[step]
        return frozenset(reached)


class _Parser:
    """Reads a pattern from left to right, and makes the steps."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self.tests: list[Test | None] = []
        """Of the character that a step takes; None: it takes none."""
        self.ways: list[list[int]] = []

    def step(self, test: Test | None, *ways: int) -> int:
        if len(self.tests) >= STEPS_MAX:
            raise self._wrong(f"it needs more than {STEPS_MAX} steps")
        self.tests.append(test)
        self.ways.append(list(ways))
        return len(self.tests) - 1

    def lead(self, ends: list[int], to: int) -> None:
        for end in ends:
            self.ways[end].append(to)

    def whole(self) -> _Fragment:
        fragment = self._either()
        if self._at < len(self._text):
            raise self._wrong("a parenthesis is closed that is not open")
        return fragment

    def _either(self) -> _Fragment:
        start, ends = self._sequence()
        while self._take("|"):
            other, more = self._sequence()
            start, ends = self.step(None, start, other), ends + more
        return start, ends

    def _sequence(self) -> _Fragment:
        start = self.step(None)
        ends = [start]
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            if self._take("^") or self._take("$"):
                continue
            first, last = self._repeated()
            self.lead(ends, first)
            ends = last
        return start, ends

    def _repeated(self) -> _Fragment:
        began = self._at
        fragment = self._one()
        bounds = self._bounds()
        if bounds is None:
            return fragment
        self._take("?")
        return self._times(began, fragment, *bounds)

    def _bounds(self) -> tuple[int, int | None] | None:
        for sign, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(sign):
                return bounds
        if not self._take("{"):
            return None
        inner, closed, _ = self._text[self._at :].partition("}")
        least, comma, most = inner.partition(",")
        if not closed or not least.isdecimal() or not (most.isdecimal() or not most):
            raise self._wrong("a repetition is {m}, {m,} or {m,n}")
        if max(len(least), len(most)) > DIGITS_MAX:
            raise self._wrong(f"a repetition's bound has more than {DIGITS_MAX} digits")
        self._at += len(inner) + 1
        return int(least), int(most) if most else None if comma else int(least)

    def _times(self, began: int, first: _Fragment, least: int, most: int | None) -> _Fragment:
        """Copies are made by reading the same piece of the pattern again."""
        if most is not None and most < least:
            raise self._wrong("a repetition has its bounds in the wrong order")
        ended, self._at = self._at, began
        start = self.step(None)
        ends, unused, left = [start], [first], max(least, 0 if most is None else most, 1)
        open_ends: list[int] = []
        for number in range(left):
            self._at = began
            begin, last = unused.pop() if unused else self._one()
            if number >= least:
                open_ends += ends
            self.lead(ends, begin)
            ends = last
            if most is None and number == left - 1:
                self.lead(last, begin)
        self._at = ended
        return start, [start] if most == 0 else ends + open_ends

    def _one(self) -> _Fragment:
        one = self._next()
        if one == "(":
            return self._group()
        if one in "*+?{":
            raise self._wrong(f"nothing is before {one}")
        test = self._class() if one == "[" else self._escaped() if one == "\\" else _only(one)
        step = self.step(_any if one == "." else test)
        return step, [step]

    def _group(self) -> _Fragment:
        if self._take("?") and not self._take(":"):
            raise self._wrong("of the groups with (? there is (?: alone")
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise self._wrong(f"it has more than {DEPTH_MAX} groups in one another")
        fragment = self._either()
        if not self._take(")"):
            raise self._wrong("a parenthesis is not closed")
        self._depth -= 1
        return fragment

    def _escaped(self) -> Test:
        one = self._next()
        test = _CLASSES.get(one.lower())
        if test is not None:
            return test if one.islower() else lambda other: not test(other)
        if one in _ESCAPES:
            return _only(_ESCAPES[one])
        if one.isalnum():
            raise self._wrong(f"\\{one} is not known")
        return _only(one)

    def _class(self) -> Test:
        is_inverse = self._take("^")
        tests: list[Test] = []
        while not tests or not self._take("]"):
            one = self._next()
            if one == "\\":
                tests.append(self._escaped())
            elif self._is_range() and self._take("-"):
                tests.append(_between(one, self._next()))
            else:
                tests.append(_only(one))
        return lambda other: any(test(other) for test in tests) != is_inverse

    def _is_range(self) -> bool:
        """Whether a - comes that is neither the class's last character nor the pattern's."""
        coming = self._text[self._at : self._at + 2]
        return len(coming) == 2 and coming[0] == "-" and coming[1] != "]"

    def _take(self, sign: str) -> bool:
        is_there = self._text.startswith(sign, self._at)
        self._at += is_there
        return is_there

    def _next(self) -> str:
        if self._at >= len(self._text):
            raise self._wrong("it ends too early")
        self._at += 1
        return self._text[self._at - 1]

    def _wrong(self, fault: str) -> Invalid:
        return Invalid(f"the pattern {self._text[:80]!r} is no regular expression: {fault}")


def _any(one: str) -> bool:
    return one != "\n"


def _only(wanted: str) -> Test:
    return lambda one: one == wanted


def _between(first: str, last: str) -> Test:
    return lambda one: first <= one <= last
