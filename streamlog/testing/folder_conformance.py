"""The contract of GrowingFolder: inherit `GrowingFolderConformance` and say how to make a folder.

The rules are those of `streamlog.runtime.disk.growing`; each test shows one through it alone. What
a power cut leaves is not part of it: no process can see that of the machine it runs on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import pytest

from streamlog.runtime.disk.growing import GrowingFolder


class GrowingFolderConformance(ABC):
    @abstractmethod
    def folder(self) -> GrowingFolder:
        """An empty folder."""

    def test_appends_lie_one_behind_the_other(self) -> None:
        file = self.folder().create("a.log")
        assert file.append([b"one", b"", b"two"]) == 0
        assert file.append([]) == 6
        assert file.append([memoryview(b"three")]) == 6
        assert file.size() == 11
        assert file.read(0, 100) == b"onetwothree"
        assert file.read(3, 3) == b"two"
        assert file.read(9, 5) == b"ee"
        assert file.read(11, 5) == b""
        file.close()

    def test_what_is_in_memory_is_read_at_once_or_not_known(self) -> None:
        file = self.folder().create("a.log")
        file.append([b"onetwothree"])
        for position, length in ((0, 100), (3, 3), (9, 5), (11, 5)):
            assert file.read_now(position, length) in (None, file.read(position, length))
        file.close()

    def test_a_closed_file_takes_nothing_and_is_closed_once(self) -> None:
        folder = self.folder()
        file = folder.create("a.log")
        file.append([b"one"])
        file.close()
        other = folder.create("b.log")
        file.close()
        assert other.append([b"two"]) == 0
        for call in (lambda: file.append([b"more"]), lambda: file.read(0, 3), file.sync):
            with pytest.raises(OSError):
                call()
        other.close()

    def test_very_many_parts_are_one_append(self) -> None:
        file = self.folder().create("a.log")
        parts = [b"%05d" % number for number in range(3000)]
        assert file.append(parts) == 0
        assert file.read(0, 20_000) == b"".join(parts)
        file.close()

    def test_a_file_opened_again_is_appended_to_at_its_end(self) -> None:
        folder = self.folder()
        file = folder.create("a.log")
        file.append([b"one"])
        file.close()
        file = folder.open("a.log")
        assert (file.size(), file.append([b"two"])) == (3, 3)
        assert file.read(0, 10) == b"onetwo"
        file.close()

    def test_a_file_opened_to_read_has_what_is_there(self) -> None:
        folder = self.folder()
        with pytest.raises(FileNotFoundError):
            folder.open_to_read("a.log")
        file = folder.create("a.log")
        file.append([b"one"])
        reader = folder.open_to_read("a.log")
        assert (reader.size(), reader.read(1, 10)) == (3, b"ne")
        assert reader.read_now(1, 10) in (None, b"ne")
        for one in (file, reader):
            one.close()

    def test_a_file_is_cut_and_appended_to_behind_the_cut(self) -> None:
        file = self.folder().create("a.log")
        file.append([bytes(1000), b"tail"])
        file.truncate(1000)
        assert file.size() == 1000
        assert file.append([b"new"]) == 1000
        assert file.read(998, 10) == b"\0\0new"
        file.truncate(0)
        assert (file.size(), file.read(0, 10)) == (0, b"")
        file.close()

    @pytest.mark.parametrize("position", [0, 3, 1 << 20, (1 << 21) + 5])
    def test_what_is_written_again_stays_as_it_is(self, position: int) -> None:
        data = bytes(range(251)) * 8400
        file = self.folder().create("a.log")
        file.append([data])
        file.write_again(min(position, len(data)))
        assert file.size() == len(data)
        assert file.append([b"tail"]) == len(data)
        assert file.read(0, 1 << 22) == data + b"tail"
        file.close()

    @pytest.mark.parametrize("size", [-1, 4])
    def test_a_cut_makes_no_file_longer(self, size: int) -> None:
        file = self.folder().create("a.log")
        file.append([b"one"])
        with pytest.raises(ValueError, match="cannot be cut"):
            file.truncate(size)
        assert file.read(0, 10) == b"one"
        file.close()

    def test_the_list_has_the_names_in_order(self) -> None:
        folder = self.folder()
        for name in ("b", "a", "c"):
            folder.create(name).close()
        folder.remove("b")
        folder.sync()
        assert folder.list() == ["a", "c"]
        assert folder.free_bytes() > 0

    def test_a_name_is_made_once(self) -> None:
        folder = self.folder()
        folder.create("a").close()
        with pytest.raises(FileExistsError):
            folder.create("a")

    def test_a_missing_name_is_an_error(self) -> None:
        folder = self.folder()
        for call in (folder.open, folder.remove, lambda name: folder.rename(name, "b")):
            with pytest.raises(FileNotFoundError):
                call("a")

    def test_a_rename_keeps_content_and_replaces_the_file_of_that_name(self) -> None:
        folder = self.folder()
        for name in ("new", "old"):
            file = folder.create(name)
            file.append([name.encode()])
            file.sync()
            file.close()
        folder.rename("new", "old")
        folder.sync()
        assert folder.list() == ["old"]
        file = folder.open("old")
        assert file.read(0, 10) == b"new"
        file.close()

    def test_a_handle_stays_with_its_file_when_the_name_changes(self) -> None:
        folder = self.folder()
        file = folder.create("a")
        file.append([b"one"])
        folder.rename("a", "b")
        file.append([b"two"])
        file.sync()
        file.close()
        file = folder.open("b")
        assert file.read(0, 10) == b"onetwo"
        file.close()

    @pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/a", "a\0b"])
    def test_a_name_is_one_component_of_a_path(self, name: str) -> None:
        folder = self.folder()
        folder.create("a").close()
        for call in (folder.create, folder.open, folder.remove):
            with pytest.raises(ValueError, match="not a file name"):
                call(name)
        with pytest.raises(ValueError, match="not a file name"):
            folder.rename("a", name)
        assert folder.list() == ["a"]
