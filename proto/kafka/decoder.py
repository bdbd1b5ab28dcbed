"""Python source of the decoder of one message in one version.

A run of fields of fixed width is read by one `struct` call, straight into the slots. The length of
the variable field behind a run, or the count of tags, joins the run as its last value.
"""

from __future__ import annotations

from definitions import FIXED, Field, Structure
from source import Body, default_of

Run = list[tuple[str, str, int]]
"""Fields of a fixed width side by side: letter of `struct`, where the value goes, bytes."""


class Decoder(Body):
    def emit(self) -> list[str]:
        """Statements of the function's body; `data`, `at` and `room` are its variables."""
        self._structure(self._message.structure, "message", 1)
        self._lines.append("    return message, at")
        return self._lines

    def _structure(self, structure: Structure, target: str, depth: int) -> None:
        version = self._version
        self._put(depth, f"{target} = new({structure.name})")
        tagged = structure.tagged_at(version)
        for field in structure.fields:
            if version not in field.versions or field in tagged:
                self._put(depth, f"{target}.{field.name} = {default_of(field)}")
        run: Run = []
        for field in structure.at(version):
            place = f"{target}.{field.name}"
            if not field.is_array and field.type in FIXED:
                code, size = FIXED[field.type]
                run.append((code, place, size))
            else:
                self._variable(field, place, run, depth)
        if self._is_flexible:
            self._tags(tagged, target, run, depth)
        self._flush(run, depth)

    def _flush(self, run: Run, depth: int) -> None:
        if run:
            name = self._source.unpacker("".join(code for code, _, _ in run))
            targets = ", ".join(place for _, place, _ in run) + ("," if len(run) == 1 else "")
            self._put(depth, f"{targets} = {name}(data, at)")
            self._put(depth, f"at += {sum(size for _, _, size in run)}")
            run.clear()

    def _length(self, run: Run, code: str, depth: int) -> str:
        """Reads a length behind the run; the name of the variable that has it (-1: null)."""
        name = self._name("size")
        if not self._is_flexible:
            run.append((code, name, {"h": 2, "i": 4}[code]))
            self._flush(run, depth)
            return name
        if run:
            run.append(("B", name, 1))
            self._flush(run, depth)
        else:
            self._put(depth, f"{name} = data[at]")
            self._put(depth, "at += 1")
        self._put(depth, f"if {name} > 127:")
        self._put(depth + 1, f"{name}, at = longer(data, at, {name})")
        self._put(depth, f"{name} -= 1")
        return name

    def _variable(self, field: Field, place: str, run: Run, depth: int) -> None:
        is_nullable = self._version in field.nullable
        suffix = "_or_null" if is_nullable else ""
        if field.is_array:
            self._array(field, place, run, depth, is_nullable)
        elif field.type == "string":
            size = self._length(run, "h", depth)
            self._put(depth, f"{place}, at = text{suffix}(data, at, {size})")
        elif field.is_blob:
            size = self._length(run, "i", depth)
            self._put(depth, f"{place}, at = blob{suffix}(data, at, {size})")
        else:
            assert field.structure is not None
            if is_nullable:
                mark = self._name("mark")
                run.append(("b", mark, 1))
                self._flush(run, depth)
                self._put(depth, f"if {mark} < 0:")
                self._put(depth + 1, f"{place} = None")
                self._put(depth, "else:")
                depth += 1
            else:
                self._flush(run, depth)
            inner = self._name(field.name)
            self._structure(field.structure, inner, depth)
            self._put(depth, f"{place} = {inner}")

    def _array(
        self,
        field: Field,
        place: str,
        run: Run,
        depth: int,
        is_nullable: bool,
    ) -> None:
        count = self._length(run, "i", depth)
        if is_nullable:
            self._put(depth, f"if {count} == -1:")
            self._put(depth + 1, f"{place} = None")
            self._put(depth, "else:")
            depth += 1
        least = self._least_of_element(field)
        self._put(depth, f"room = check_count({count}, {least}, len(data) - at, room)")
        if field.type == "uuid":
            self._put(depth, f"{place} = uuids(data, at, {count})")
            self._put(depth, f"at += 16 * {count}")
        elif field.type in FIXED:
            code, size = FIXED[field.type]
            self._put(depth, f'{place} = numbers(data, at, {count}, "{code}")')
            self._put(depth, f"at += {size} * {count}")
        else:
            items = self._name("items")
            kind = "str" if field.structure is None else field.structure.name
            self._put(depth, f"{items}: list[{kind}] = []")
            self._put(depth, f"{place} = {items}")
            self._put(depth, f"for _ in range({count}):")
            item = self._name("item")
            if field.structure is not None:
                self._structure(field.structure, item, depth + 1)
            else:
                size_name = self._length([], "h", depth + 1)
                self._put(depth + 1, f"{item}, at = text(data, at, {size_name})")
            self._put(depth + 1, f"{items}.append({item})")

    def _tags(self, tagged: list[Field], target: str, run: Run, depth: int) -> None:
        count = self._name("tags")
        if run:
            run.append(("B", count, 1))
            self._flush(run, depth)
        else:
            self._put(depth, f"{count} = data[at]")
            self._put(depth, "at += 1")
        self._put(depth, f"if {count}:")
        depth += 1
        if not tagged:
            self._put(depth, f"at, room = skip_tags(data, at, {count}, room)")
            return
        self._put(depth, f"if {count} > 127:")
        self._put(depth + 1, f"{count}, at = longer(data, at, {count})")
        self._put(depth, f"room = check_count({count}, 2, len(data) - at, room)")
        self._put(depth, f"for _ in range({count}):")
        depth += 1
        tag, end = self._name("tag"), self._name("end")
        self._put(depth, f"{tag}, at, {end} = tag_at(data, at)")
        for field in tagged:
            self._put(depth, f"if {tag} == {field.tag}:")
            place = f"{target}.{field.name}"
            inner: Run = []
            if not field.is_array and field.type in FIXED:
                code, size = FIXED[field.type]
                inner.append((code, place, size))
            else:
                self._variable(field, place, inner, depth + 1)
            self._flush(inner, depth + 1)
            self._put(depth + 1, f"check_tag_end(at, {end})")
        self._put(depth, f"at = {end}")

    def _least_of_element(self, field: Field) -> int:
        if field.structure is not None:
            return self._least_of_structure(field.structure)
        return self._least_of_value(field.type)

    def _least_of_structure(self, structure: Structure) -> int:
        fields = structure.at(self._version)
        return sum(map(self._least_of_field, fields)) + (1 if self._is_flexible else 0)

    def _least_of_field(self, field: Field) -> int:
        if field.is_array:
            return 1 if self._is_flexible else 4
        if field.structure is not None:
            if self._version in field.nullable:
                return 1
            return self._least_of_structure(field.structure)
        return self._least_of_value(field.type)

    def _least_of_value(self, kind: str) -> int:
        if kind in FIXED:
            return FIXED[kind][1]
        if self._is_flexible:
            return 1
        return 2 if kind == "string" else 4
