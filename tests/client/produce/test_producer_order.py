"""One producer's records of a partition are stored in the order of `send`, each at most once; those
of unknown outcome too, where they are stored."""

from __future__ import annotations

from collections import deque

import pytest

from streamlog.errors import InvalidRecord, OutcomeUnknown, Overloaded
from tests.client.producer_model import DELIVERY_TIMEOUT_MS, ProducerModel


@pytest.mark.parametrize("first_seed", range(100, 300, 50))
def test_random_faults_neither_reorder_nor_double(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 50):
        model = ProducerModel(seed)
        model.run(600)
        model.check()


def one_stored() -> ProducerModel:
    """A model without faults of its own whose first record is stored."""
    model = ProducerModel(0, partitions=1)
    model.refuse_next = deque()
    model.send_one()
    model.finish()
    return model


def test_behind_a_gap_an_attempt_in_flight_may_still_be_stored() -> None:
    """The second of two batches is refused behind the first, while attempts of both still come in
    over a connection that broke."""
    model = one_stored()
    model.send_one()
    model.write()
    model.pass_time(0.1)
    model.send_one()
    model.write()
    late = model.lose_connection()
    model.pass_time(0.1)
    model.refuse_next = deque([Overloaded("full")])
    model.write()
    model.serve_all(model.opened())
    model.pass_time(DELIVERY_TIMEOUT_MS / 1000 - 0.15)
    for _ in range(2):
        model.ask_identity()
    model.serve_all(late)
    model.send_one()
    model.finish()
    assert model.partitions[0].values() == [0, 1, 2, 3]
    model.check()
    for number in (1, 2):
        assert isinstance(model.error_of(number), OutcomeUnknown)


def test_batches_behind_a_gap_of_unknown_outcome_wait_for_the_new_epoch() -> None:
    """The gap may be filled by a late attempt, which would make room for others behind it."""
    model = one_stored()
    for _ in range(2):
        model.send_one()
        model.write()
    late = [model.lose_connection()]
    model.send_one()
    model.pass_time(0.1)
    model.refuse_next = deque([Overloaded("full")])
    model.write()
    model.serve_all(model.opened())
    model.pass_time(0.1)
    model.write(messages_max=2)
    late.append(model.lose_connection())
    model.pass_time(0.1)
    model.write(messages_max=2)
    model.refuse_next = deque([Overloaded("full"), InvalidRecord("for good")])
    model.serve_all(model.opened())
    assert isinstance(model.error_of(2), OutcomeUnknown)
    model.pass_time(0.1)
    model.write()
    late.append(model.lose_connection())
    model.pass_time(0.1)
    model.write()
    model.serve_all(model.opened())
    for connection in late:
        model.serve_all(connection)
    model.finish()
    assert model.partitions[0].values() == [0, 1, 2, 3]
    model.check()


def test_a_stored_batch_is_recognised_however_often_it_is_refused_before() -> None:
    """Later batches are taken meanwhile, and the server remembers the last 32 alone."""
    model = one_stored()
    model.send_one()
    model.write()
    model.serve(model.opened())
    model.lose_connection()
    for _ in range(3):
        model.pass_time(0.1)
        for _ in range(400):
            model.send_one()
        model.write(messages_max=40)
        model.refuse_next = deque([Overloaded("full")])
        model.serve_all(model.opened())
    assert len(model.partitions[0].batches) >= 32
    model.pass_time(0.1)
    model.write()
    model.serve_all(model.opened())
    assert (model.sent[1][1].done, model.error_of(1)) == (True, None)
    model.finish()
    model.check()


def test_after_a_long_silence_one_batch_goes_first() -> None:
    """The node may have forgotten the producer, and would take the second batch without the
    first."""
    model = one_stored()
    model.pass_time(3600)
    model.partitions[0].forget_producers()
    model.refuse_next = deque([Overloaded("full")])
    for _ in range(2):
        model.send_one()
        model.write()
    model.finish()
    assert model.partitions[0].values() == [0, 1, 2]
    model.check()
