"""How many threads a compiled step uses, by hand-made times."""

import pytest

from nttzoo.codegen.training import threads


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(threads.time, "perf_counter", lambda: now[0])
    return now


def used(choice, clock, seconds, calls):
    """The numbers of threads of so many calls, each of which takes its number's seconds."""
    found = []
    for _ in range(calls):
        with choice.use(10) as number:
            clock[0] += seconds[number]
        found.append(number)
    return found


def test_all_threads_are_used_where_they_are_faster(clock):
    found = used(threads.ThreadChoice(2), clock, {2: 1.0, 1: 1.8}, 300)
    assert found[:2] == [2, 1], "both are tried"
    assert found.count(1) < 10, "the slower one rarely"


def test_one_thread_is_used_where_the_others_are_kept_from_running(clock):
    choice = threads.ThreadChoice(2)
    assert used(choice, clock, {2: 1.0, 1: 1.8}, 30)[-1] == 2
    assert used(choice, clock, {2: 9.0, 1: 1.8}, 3)[1:] == [1, 1], "at once"
    assert 2 in used(choice, clock, {2: 1.0, 1: 1.8}, 10), "and back when the machine is free again"
    assert used(choice, clock, {2: 1.0, 1: 1.8}, 3) == [2, 2, 2]


def test_on_one_core_there_is_nothing_to_choose(clock):
    assert set(used(threads.ThreadChoice(1), clock, {1: 1.0}, 50)) == {1}
