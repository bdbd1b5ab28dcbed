"""What of one batch survives, with Kafka's rules for horizons, markers and producers."""

from __future__ import annotations

import pytest

from streamlog.codec.batch import Compression, parse_header, scan
from streamlog.codec.records import decode
from streamlog.errors import Invalid
from streamlog.log.api.cleaning import AbortedRange, LastRecordOfProducer
from streamlog.log.cleaning.batch_filter import BatchFilter, add_keys
from streamlog.log.cleaning.cleaned_transactions import CleanedTransactions
from streamlog.log.cleaning.offset_map import ENTRY_BYTES, KeyOffsetMap
from tests.log.cleaning.cleanable_list_log import FAR, at, batch, marker

RETENTION_MS = 100


def cleaned(data, *, now=1000, learnt=None, aborted=(), last=None, upper=-1):
    offsets = KeyOffsetMap(1 << 20)
    add_keys(data if learnt is None else learnt, 0, FAR, offsets, CleanedTransactions(aborted))
    rules = BatchFilter(offsets, CleanedTransactions(aborted), last or {}, now, RETENTION_MS, upper)
    return rules.keep(data)


def left(data):
    return [record[:4] for one in scan(data) for record in decode(one.view)]


@pytest.mark.parametrize("codec", list(Compression))
def test_a_rewritten_batch_keeps_offsets_times_producer_and_codec(codec):
    value = b"v" * 500
    data = batch(
        [(5, b"a", b"old"), (6, b"b", value), (9, b"a", b"new"), (8, b"b", value)],
        (7, 1, 40),
        codec=codec,
    )
    out = cleaned(at(data, 20))
    before, after = parse_header(at(data, 20)), parse_header(out)
    assert left(out) == [(22, 9, b"a", b"new"), (23, 8, b"b", value)]
    assert after.codec == codec
    assert (after.base_offset, after.last_offset) == (20, 23)
    assert after[9:12] == before[9:12] == (7, 1, 40)
    assert after.max_timestamp_ms == 9


def test_a_batch_of_which_all_stays_is_the_same_bytes():
    data = at(batch([(5, b"a", b"1"), (6, b"b", b"2")]), 3)
    assert cleaned(data) == data


def test_records_past_the_map_stay_even_without_a_key():
    first, second = (
        at(batch([(1, b"a", b"1"), (1, None, b"x")]), 0),
        at(batch([(1, None, b"2")]), 2),
    )
    assert left(cleaned(first + second, learnt=first)) == [
        (0, 1, b"a", b"1"),
        (2, 1, None, b"2"),
    ]


def test_a_tombstone_gets_a_horizon_and_goes_when_it_has_passed():
    data = at(batch([(5, b"a", b"1"), (6, b"a", None), (7, b"b", b"2")]), 0)
    once = cleaned(data, now=1000)
    header = parse_header(once)
    assert header.attributes & 0x40
    assert header.base_timestamp_ms == 1000 + RETENTION_MS
    assert left(once) == [(1, 6, b"a", None), (2, 7, b"b", b"2")]
    assert cleaned(once, now=1099) == once
    assert left(cleaned(once, now=1100)) == [(2, 7, b"b", b"2")]


def test_a_horizon_is_not_moved_by_a_later_cleaning():
    once = cleaned(at(batch([(6, b"a", None), (7, b"b", b"2")]), 0), now=1000)
    later = at(batch([(9, b"b", b"3")]), 2)
    again = cleaned(once + later, now=1050)
    assert parse_header(again).base_timestamp_ms == 1100
    assert left(again) == [(0, 6, b"a", None), (2, 9, b"b", b"3")]


def test_the_last_batch_of_an_active_producer_stays_without_records():
    old, new = at(batch([(1, b"a", b"1")], (7, 2, 30)), 0), at(batch([(2, b"a", b"2")]), 1)
    assert left(cleaned(old + new)) == [(1, 2, b"a", b"2")]
    assert cleaned(old + new) == new
    kept = cleaned(old + new, last={7: LastRecordOfProducer(0, 2)})
    header = scan(kept)[0].header
    assert (header.record_count, header.last_sequence, header.producer_epoch) == (0, 30, 2)
    assert cleaned(kept, last={7: LastRecordOfProducer(0, 2)}) == kept
    assert cleaned(kept) == new


def test_the_batch_at_the_upper_bound_stays_without_records():
    data = at(batch([(1, None, b"no key"), (1, None, b"no key")]), 0)
    header = parse_header(cleaned(data, upper=2))
    assert (header.record_count, header.next_offset) == (0, 2)


def test_aborted_records_go_at_once_and_do_not_hide_earlier_ones():
    data = at(batch([(1, b"a", b"1")]), 0) + at(
        batch([(2, b"a", b"aborted")], (7, 0, 0), is_transactional=True), 1
    )
    data += at(marker(7, 0, False), 2)
    aborted = [AbortedRange(7, 1, 2)]
    out = cleaned(data, aborted=aborted)
    batches = scan(out)
    assert left(out)[0] == (0, 1, b"a", b"1")
    assert [one.header.is_control for one in batches] == [False, True]
    assert not batches[1].header.attributes & 0x40


@pytest.mark.parametrize("is_commit", [False, True])
def test_a_marker_goes_after_its_records_and_the_horizon(is_commit):
    data = at(marker(7, 0, is_commit), 2)
    once = cleaned(data, now=1000)
    assert parse_header(once).base_timestamp_ms == 1100
    assert decode(once)[0][2:4] == decode(data)[0][2:4]
    assert cleaned(once, now=1099) == once
    assert cleaned(once, now=1100) == b""
    with_state = cleaned(once, now=1100, last={7: LastRecordOfProducer(-1, 0)})
    header = parse_header(with_state)
    assert (header.is_control, header.record_count) == (True, 0)


def test_a_commit_marker_stays_as_long_as_a_record_of_its_transaction():
    data = at(batch([(1, b"a", b"1")], (7, 0, 0), is_transactional=True), 0)
    data += at(marker(7, 0, True), 1)
    assert cleaned(cleaned(data), now=FAR) == data


def test_a_full_map_takes_known_keys_only():
    offsets = KeyOffsetMap(2 * ENTRY_BYTES)
    assert offsets.put(b"a", 0)
    assert offsets.put(b"k" * 100, 1)
    assert not offsets.put(b"c", 2)
    assert offsets.put(b"a", 3)
    assert (offsets.get(b"a"), offsets.get(b"k" * 100), offsets.get(b"c")) == (3, 1, -1)
    with pytest.raises(Invalid, match="dedupe"):
        KeyOffsetMap(ENTRY_BYTES - 1)
