"""Owners of shards that answer late, never, or die; Ray is a stand-in of this process."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from ucofia.cluster import connect
from ucofia.cluster.shards import Actors


class DiedError(Exception):
    """What Ray raises for an actor that it knows is dead."""


class Answer:
    """What an actor will say to a question, or when asked for a sign of life."""

    def __init__(self, actor: "Actor", *, is_pulse: bool) -> None:
        self.actor = actor
        kinds = {"quick", "dead", "slow"} if is_pulse else {"quick", "dead"}
        self.is_there = actor.kind in kinds


class Actor:
    """Answers with its name: quick, slow, or (silent) never; or it is dead."""

    def __init__(self, name: int, kind: str) -> None:
        self.name, self.kind = name, kind
        pulse = SimpleNamespace(remote=lambda: Answer(self, is_pulse=True))
        self.ready = SimpleNamespace(options=lambda **_: pulse)
        self.search = SimpleNamespace(remote=lambda: Answer(self, is_pulse=False))


class StandIn:
    """Ray whose `wait` returns at once; from the fifth time on everybody has answered."""

    def __init__(self) -> None:
        self.killed: list[int] = []
        self.waits = 0

    def wait(self, answers: list[Answer], *, num_returns: int, timeout: float) -> Any:
        self.waits += 1
        done = [a for a in answers if a.is_there or self.waits >= 5][:num_returns]
        return done, [a for a in answers if a not in done]

    def get(self, answer: Answer) -> int:
        if answer.actor.kind == "dead":
            raise DiedError
        return answer.actor.name

    def kill(self, actor: Actor) -> None:
        self.killed.append(actor.name)


@pytest.mark.parametrize(
    ("kinds", "owners", "killed"),
    [
        ("quick silent quick", [0, 0, 2], [1]),
        ("quick dead quick", [0, 0, 2], [1]),
        ("quick slow quick", [0, 1, 2], []),
        ("silent quick silent", [1, 1, 1], [0, 2]),
        ("silent silent silent", [0, 1, 2], []),  # nobody could take over: they are waited for
    ],
)
def test_others_answer_for_one_that_gives_no_sign_of_life(
    monkeypatch: pytest.MonkeyPatch, kinds: str, owners: list[int], killed: list[int]
) -> None:
    ray = StandIn()
    monkeypatch.setattr(connect, "ray", lambda: ray)
    monkeypatch.setattr(connect, "death_errors", lambda: (DiedError,))
    actors = Actors.__new__(Actors)
    actors.count, actors._lock = 3, threading.RLock()
    actors._owners = [Actor(name, kind) for name, kind in enumerate(kinds.split())]
    found = dict(actors.ask("search", {number: () for number in range(3)}))
    assert [found[number] for number in range(3)] == owners
    assert sorted(ray.killed) == killed


def test_the_last_actor_may_die_while_an_owner_is_looked_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connect, "ray", StandIn)
    actors = Actors.__new__(Actors)
    actors.count, actors._lock = 1, threading.RLock()
    last = Actor(0, "dead")
    actors._owners = [last]
    others: list[threading.Thread] = []

    def require(least: int) -> None:
        Actors.require(actors, least)
        others.append(threading.Thread(target=actors._reassign, args=(last,)))
        others[0].start()
        others[0].join(0.3)  # as long as it takes, or until it has to wait

    monkeypatch.setattr(actors, "require", require)
    assert actors._owner(0) is last  # who asks it will be told that it is gone
    others[0].join()
    assert actors._owners == []
