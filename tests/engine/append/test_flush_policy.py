"""When a batch becomes an object."""

from __future__ import annotations

from streamlog.engine.append.flush_policy import FlushDecision, FlushPolicy

ADAPTIVE = FlushPolicy(bytes_target=100, interval_s=0.1, is_adaptive=True)
RATED = FlushPolicy(bytes_target=100, interval_s=0.1, is_adaptive=True, put_distance_s=0.5)
BEHIND = FlushPolicy(bytes_target=100, interval_s=1.0, is_adaptive=False)


def decide(
    policy: FlushPolicy,
    *,
    size: int = 10,
    in_flight: int = 0,
    under_way: int = 0,
    last: float = -100.0,
    pressed: bool = False,
) -> FlushDecision:
    return policy.decide(
        size_bytes=size,
        opened_at=5.0,
        uploads_in_flight=in_flight,
        bytes_in_flight=under_way,
        last_closed_at=last,
        is_flush_requested=pressed,
    )


def test_a_full_batch_or_a_requested_flush_is_uploaded_at_once() -> None:
    for policy in (ADAPTIVE, RATED, BEHIND):
        assert decide(policy, size=100, in_flight=3, last=5.0) == (5.0, "size")
        assert decide(policy, in_flight=3, last=5.0, pressed=True) == (5.0, "pressure")


def test_an_idle_node_uploads_at_once_and_a_busy_one_after_the_interval() -> None:
    assert decide(ADAPTIVE) == (5.0, "idle")
    assert decide(ADAPTIVE, in_flight=1) == (5.1, "time")
    assert decide(BEHIND) == (6.0, "time")


def test_the_put_rate_keeps_uploads_apart() -> None:
    assert decide(RATED, last=4.9) == (5.4, "idle")
    assert decide(RATED, last=4.0, in_flight=1) == (5.1, "time")


def test_a_batch_that_is_cheap_for_its_bytes_ignores_the_put_rate() -> None:
    policy = FlushPolicy(
        bytes_target=100, interval_s=0.1, is_adaptive=True, put_distance_s=0.5, overlap_bytes=40
    )
    assert decide(policy, size=40, last=4.9) == (5.0, "overlap")
    assert decide(policy, size=39, last=4.9) == (5.4, "idle")
    assert decide(policy, size=40, last=4.9, in_flight=1, under_way=41) == (5.4, "time")


def test_a_grown_batch_is_uploaded_beside_others_if_the_policy_allows() -> None:
    policy = FlushPolicy(bytes_target=100, interval_s=0.1, is_adaptive=True, overlap_bytes=40)
    assert decide(policy, size=39, in_flight=1) == (5.1, "time")
    assert decide(policy, size=40, in_flight=1, under_way=40) == (5.0, "overlap")
    assert decide(policy, size=40, in_flight=1, under_way=41) == (5.1, "time")
