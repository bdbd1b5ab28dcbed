"""An event-sourced account: load its events, decide, append them if nothing came in between.

streamlog dev &
python examples/event_sourcing.py 127.0.0.1:9644           # four clerks in this process
python examples/event_sourcing.py 127.0.0.1:9644 ann 50    # one of several processes

The partition is the account, its end is the account's version, and each event has the id of the
command that made it. A decision holds for the version that it was made on: `expected_next_offset`
stores its events there or not at all. So the balance never falls below 0, whoever withdraws.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable

from streamlog.client import Admin, Consumer, Partitions
from streamlog.errors import OffsetConflict, OutcomeUnknown, TopicAlreadyExists, Unavailable

TOPIC = "example-account"
PLACE = (TOPIC, 0)

Decision = Callable[[int], int | None]
"""The change to make, given the balance; None: none."""


class Account:
    def __init__(self, server: str) -> None:
        self.logs = Partitions(server)
        self.consumer = Consumer(server)
        self.consumer.assign([PLACE])
        self.version = 0
        self.balance = 0
        self.commands: dict[str, int] = {}
        """Id of each command whose event is stored, and the event's offset."""

    def close(self) -> None:
        self.logs.close()
        self.consumer.close()

    def load(self) -> None:
        """Applies the events that came since the last call."""
        end = self.consumer.end_offsets([PLACE])[PLACE]
        while self.version < end:
            for record in self.consumer.poll(1.0):
                assert record.value is not None
                event = json.loads(record.value)
                self.balance += event["change"]
                self.commands[event["command"]] = record.offset
                self.version = record.offset + 1

    def do(self, command: str, decide: Decision) -> int | None:
        """The offset of the command's event; None where the decision is that nothing happens.

        It may be called again with the same command, also by another process: it happens once.
        """
        while True:
            self.load()
            if command in self.commands:
                # From an earlier call, or an append whose outcome was unknown: it was ours.
                return self.commands[command]
            change = decide(self.balance)
            if change is None:
                return None
            event = json.dumps({"command": command, "change": change}).encode()
            try:
                self.logs.append(*PLACE, event, expected_next_offset=self.version)
            except (OffsetConflict, OutcomeUnknown):
                continue


def deposit(amount: int) -> Decision:
    return lambda _balance: amount


def withdraw(amount: int) -> Decision:
    return lambda balance: -amount if balance >= amount else None


def clerk(server: str, name: str, commands: int) -> None:
    """Deposits 5 now and then, and withdraws 3 as often as there is money."""
    account = Account(server)
    try:
        for number in range(commands):
            command = f"{name} {number}"
            decision = deposit(5) if number % 3 == 0 else withdraw(3)
            while True:
                try:
                    offset = account.do(command, decision)
                    break
                except Unavailable as error:
                    print(f"{name}: {error}", flush=True)
            result = "refused" if offset is None else f"at {offset}"
            print(f"{command}: {result}", flush=True)
    finally:
        account.close()


def create_topic(server: str) -> None:
    with Admin(server) as admin:
        try:
            admin.create_topic(TOPIC, partitions=1)
        except TopicAlreadyExists:
            print(f"{TOPIC} is there already")


def main(server: str) -> None:
    create_topic(server)
    names = ("ann", "bob", "eve")
    threads = [threading.Thread(target=clerk, args=(server, name, 15)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    account = Account(server)
    account.load()
    print(f"balance {account.balance} in version {account.version}")
    account.close()


if __name__ == "__main__":
    given = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9644"
    if len(sys.argv) > 2:
        create_topic(given)
        clerk(given, sys.argv[2], int(sys.argv[3]))
    else:
        main(given)
