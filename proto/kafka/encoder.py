"""Python source of the encoder of one message in one version.

Bytes are gathered in the list `pieces`; `put` is its `append`. A field of type `bytes` or `records`
ends what was gathered and becomes a piece of its own in `done`. A run of fields of fixed width is
one `struct` call, and an empty section of tags behind it is a pad byte of the same call.
"""

from __future__ import annotations

from definitions import FIXED, Field, Structure
from source import Body, default_of

Run = list[tuple[str, str]]
"""Fields of a fixed width side by side: letter of `struct`, expression of the value."""


class Encoder(Body):
    def emit(self) -> list[str]:
        """Statements of the function's body."""
        self._structure(self._message.structure, "message", "put", 1)
        return self._lines

    def _structure(self, structure: Structure, value: str, put: str, depth: int) -> None:
        run: Run = []
        for field in structure.at(self._version):
            place = f"{value}.{field.name}"
            if not field.is_array and field.type in FIXED:
                run.append((FIXED[field.type][0], place))
            else:
                self._flush(run, put, depth)
                self._variable(field, place, put, depth)
        tagged = structure.tagged_at(self._version)
        if self._is_flexible and not tagged:
            if run:
                run.append(("x", ""))
            else:
                self._put(depth, f'{put}(b"\\0")')
        self._flush(run, put, depth)
        if self._is_flexible and tagged:
            self._tags(tagged, value, put, depth)

    def _flush(self, run: Run, put: str, depth: int) -> None:
        if run:
            name = self._source.packer("".join(code for code, _ in run))
            values = ", ".join(place for _, place in run if place)
            self._put(depth, f"{put}({name}({values}))")
            run.clear()

    def _required(self, field: Field, place: str) -> str:
        """The place as an expression that is not null in this version."""
        if field.nullable.last < field.nullable.first:
            return place
        return f'required({place}, "{field.name}")'

    def _variable(self, field: Field, place: str, put: str, depth: int) -> None:
        is_nullable = self._version in field.nullable
        kind = "compact" if self._is_flexible else "plain"
        if not field.is_array and field.type == "string":
            if is_nullable and field.name.endswith("error_message"):
                place = f"error_text({place})"
            value = f"_or_null({place})" if is_nullable else f"({self._required(field, place)})"
            self._put(depth, f"{put}({kind}_text{value})")
            return
        name = self._name(field.name)
        if not is_nullable:
            self._put(depth, f"{name} = {self._required(field, place)}")
        else:
            is_object = not field.is_array and field.structure is not None
            null = r'b"\xff"' if is_object else self._null_length()
            self._put(depth, f"{name} = {place}")
            self._put(depth, f"if {name} is None:")
            self._put(depth + 1, f"{put}({null})")
            self._put(depth, "else:")
            depth += 1
            if is_object:
                self._put(depth, f'{put}(b"\\1")')
        if field.is_array:
            self._array(field, name, put, depth)
        elif field.is_blob:
            if put != "put":
                raise ValueError(f"{field.name}: bytes within a tagged field")
            self._put(depth, f"add_blob(done, pieces, {name}, {self._is_flexible})")
        else:
            assert field.structure is not None
            self._structure(field.structure, name, put, depth)

    def _null_length(self) -> str:
        return r'b"\0"' if self._is_flexible else r'b"\xff\xff\xff\xff"'

    def _array(self, field: Field, values: str, put: str, depth: int) -> None:
        if self._is_flexible:
            count = self._name("count")
            self._put(depth, f"{count} = len({values})")
            length = f"SHORT[{count}] if {count} < SHORT_MAX else uvarint({count} + 1)"
        else:
            length = f"{self._source.packer('i')}(len({values}))"
        self._put(depth, f"{put}({length})")
        if field.type == "uuid":
            self._put(depth, f'{put}(b"".join({values}))')
            return
        if field.type in FIXED:
            self._put(depth, f'{put}(packed({values}, "{FIXED[field.type][0]}"))')
            return
        item = self._name("item")
        self._put(depth, f"for {item} in {values}:")
        if field.structure is not None:
            self._structure(field.structure, item, put, depth + 1)
        else:
            kind = "compact" if self._is_flexible else "plain"
            self._put(depth + 1, f"{put}({kind}_text({item}))")

    def _tags(self, tagged: list[Field], value: str, put: str, depth: int) -> None:
        """Most messages have none, which is one test."""
        is_default = [self._is_default(field, f"{value}.{field.name}") for field in tagged]
        self._put(depth, f"if {' and '.join(is_default)}:")
        self._put(depth + 1, f'{put}(b"\\0")')
        self._put(depth, "else:")
        depth += 1
        tags = self._name("tags")
        self._put(depth, f"{tags}: list[bytes] = []")
        for field, test in zip(tagged, is_default, strict=True):
            body = self._name("body")
            self._put(depth, f"if not ({test}):")
            self._put(depth + 1, f"{body}: list[bytes] = []")
            self._tagged_value(field, f"{value}.{field.name}", body, depth + 1)
            self._put(depth + 1, f"{tags}.append(tagged({field.tag}, {body}))")
        self._put(depth, f"{put}(uvarint(len({tags})))")
        self._put(depth, f'{put}(b"".join({tags}))')

    def _tagged_value(self, field: Field, place: str, body: str, depth: int) -> None:
        put = f"{body}.append"
        if not field.is_array and field.type in FIXED:
            self._flush([(FIXED[field.type][0], place)], put, depth)
        elif not field.is_array and field.structure is not None:
            # None stands for Kafka's default, which is not sent; see `Module`.
            name = self._name(field.name)
            self._put(depth, f"{name} = {place}")
            self._put(depth, f"assert {name} is not None")
            self._structure(field.structure, name, put, depth)
        else:
            self._variable(field, place, put, depth)

    def _is_default(self, field: Field, place: str) -> str:
        if field.is_array and default_of(field) == "()":
            if field.nullable.first <= field.nullable.last:
                raise ValueError(f"{field.name}: a tagged array that may be null")
            return f"not {place}"
        if field.structure is not None and not field.is_array:
            return f"({place} is None or {place} == {field.structure.name}())"
        default = default_of(field)
        return f"{place} {'is' if default in ('None', 'True', 'False') else '=='} {default}"
