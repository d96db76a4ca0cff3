"""Admission: strictly first come, first served, within its bounds, whatever is released when."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mlxcel_trio.core.admission import Admission, Ticket
from mlxcel_trio.errors import ConfigurationError, ServerOverloadedError


def test_slots_are_granted_in_order() -> None:
    admission = Admission(slots=2, queue_depth=3)
    tickets = [admission.admit() for _ in range(5)]
    assert [ticket.granted for ticket in tickets] == [True, True, False, False, False]
    assert (admission.running, admission.waiting) == (2, 3)
    with pytest.raises(ServerOverloadedError) as caught:
        admission.admit()
    assert caught.value.code == "server_overloaded"
    assert (admission.running, admission.waiting) == (2, 3)
    assert admission.release(tickets[1]) == (tickets[2],)
    assert admission.release(tickets[3]) == ()  # leaves from the middle of the queue
    assert admission.release(tickets[0]) == (tickets[4],)
    assert [ticket.granted for ticket in tickets] == [False, False, True, False, True]
    assert admission.release(tickets[2]) == ()
    assert admission.release(tickets[4]) == ()
    assert (admission.running, admission.waiting) == (0, 0)


@pytest.mark.parametrize("waiting", [False, True])
def test_releasing_again_does_nothing(waiting: bool) -> None:
    admission = Admission(slots=1, queue_depth=2)
    holder, first, second = (admission.admit() for _ in range(3))
    ticket = first if waiting else holder
    granted = admission.release(ticket)
    counts = (admission.running, admission.waiting)
    assert granted == (() if waiting else (first,))
    assert admission.release(ticket) == ()
    assert (admission.running, admission.waiting) == counts == (1, 1)
    assert second.granted is False


def test_without_a_queue_a_free_slot_is_all_there_is() -> None:
    admission = Admission(slots=1, queue_depth=0)
    ticket = admission.admit()
    with pytest.raises(ServerOverloadedError):
        admission.admit()
    assert admission.release(ticket) == ()
    assert admission.admit().granted


@pytest.mark.parametrize(("slots", "queue_depth"), [(0, 1), (-1, 1), (1, -1)])
def test_bounds_that_cannot_serve(slots: int, queue_depth: int) -> None:
    with pytest.raises(ConfigurationError):
        Admission(slots, queue_depth)


def test_leaving_the_queue_leaves_nothing_behind() -> None:
    admission = Admission(slots=1, queue_depth=1)
    admission.admit()
    for _ in range(1000):
        admission.release(admission.admit())
    assert (admission.running, admission.waiting) == (1, 0)
    assert len(admission._queue) == 0


class Lifecycle(RuleBasedStateMachine):
    """Any order of arrivals, departures and give-ups, against two plain lists."""

    @initialize(slots=st.integers(1, 4), queue_depth=st.integers(0, 5))
    def start(self, slots: int, queue_depth: int) -> None:
        self.slots, self.queue_depth = slots, queue_depth
        self.admission = Admission(slots, queue_depth)
        self.holders: list[Ticket] = []
        self.queue: list[Ticket] = []
        self.gone: list[Ticket] = []

    @rule()
    def admit(self) -> None:
        if len(self.queue) == self.queue_depth and len(self.holders) == self.slots:
            with pytest.raises(ServerOverloadedError):
                self.admission.admit()
            return
        ticket = self.admission.admit()
        (self.holders if len(self.holders) < self.slots else self.queue).append(ticket)

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(self.holders))
        self.holders.remove(ticket)
        self.gone.append(ticket)
        expected = tuple(self.queue[:1])
        self.queue = self.queue[1:]
        self.holders += expected
        assert self.admission.release(ticket) == expected

    @precondition(lambda self: self.queue)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(self.queue))
        self.queue.remove(ticket)
        self.gone.append(ticket)
        assert self.admission.release(ticket) == ()

    @precondition(lambda self: self.gone)
    @rule(data=st.data())
    def release_again(self, data: st.DataObject) -> None:
        assert self.admission.release(data.draw(st.sampled_from(self.gone))) == ()

    @invariant()
    def counts_and_grants_agree(self) -> None:
        assert self.admission.running == len(self.holders) <= self.slots
        assert self.admission.waiting == len(self.queue) <= self.queue_depth
        assert all(ticket.granted for ticket in self.holders)
        assert not any(ticket.granted for ticket in self.queue + self.gone)

    def teardown(self) -> None:
        if not hasattr(self, "admission"):
            return
        for ticket in self.queue + self.holders:
            self.admission.release(ticket)
        assert (self.admission.running, self.admission.waiting) == (0, 0)


TestLifecycle = Lifecycle.TestCase
TestLifecycle.settings = settings(max_examples=50, deadline=None)
