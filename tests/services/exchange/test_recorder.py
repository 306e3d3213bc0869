"""What an iteration is, and which call ends it."""

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from nalb.services.exchange.recorder import IterationRecorder, PlaceInIteration


def group(name):
    return ((name, 3, "float32"),)


def places(calls):
    """One letter a call; '-' breaks off."""
    recorder = IterationRecorder()
    return [recorder.break_off() if call == "-" else recorder.place(group(call)) for call in calls]


def test_the_record_from_the_group_that_comes_again_is_an_iteration():
    *recorded, first, second, third, again = places("abcdbcdb")
    assert recorded == [PlaceInIteration()] * 4
    assert first == PlaceInIteration(0, learned=(group("b"), group("c"), group("d")))
    assert [second, third, again] == [PlaceInIteration(1), PlaceInIteration(2, is_last=True), PlaceInIteration(0)]


def test_an_iteration_of_one_call_ends_with_it():
    assert places("aaa")[1:] == [PlaceInIteration(0, True, (group("a"),)), PlaceInIteration(0, True)]


def test_a_call_that_does_not_fit_breaks_the_iteration_off_and_begins_a_new_record():
    *_, odd, again, learned = places("ababaxbx")
    assert odd == PlaceInIteration(breaks_off=True)
    assert again == PlaceInIteration()
    assert learned == PlaceInIteration(0, learned=(group("x"), group("b")))


def test_the_same_keys_of_another_size_are_another_group():
    recorder = IterationRecorder()
    recorder.place(group("a"))
    recorder.place(group("a"))
    assert recorder.place((("a", 4, "float32"),)).breaks_off


def test_another_call_lets_the_next_iteration_begin_anew():
    assert places("ababa-a")[-1] == PlaceInIteration(0)
    assert places("ababa-b")[-1].breaks_off
    assert places("ab-a")[-1].learned == (group("a"), group("b"))  # what is only recorded stays so


def test_calls_that_never_come_again_do_not_fill_the_memory():
    recorder = IterationRecorder(record_most=1000)
    tracemalloc.start()
    try:
        for number in range(1000):
            recorder.place(group(f"metric of step {number}"))
        full_bytes, _ = tracemalloc.get_traced_memory()
        for number in range(1000, 21_000):
            assert recorder.place(group(f"metric of step {number}")) == PlaceInIteration()
        assert tracemalloc.get_traced_memory()[0] < 2 * full_bytes
    finally:
        tracemalloc.stop()


def test_an_iteration_of_several_calls_is_learned_up_to_so_many_tensors():
    for calls, most, is_learned in (("abcda", 4, True), ("abcdea", 4, False), ("aa", 0, True)):
        recorder = IterationRecorder(record_most=most)
        *_, last = (recorder.place(group(call)) for call in calls)
        assert (last.number == 0) is is_learned, calls
    recorder = IterationRecorder(record_most=4)
    *_, last = (recorder.place(group(call)) for call in "abcdefdef")  # what came before is forgotten, and not missed
    assert last == PlaceInIteration(2, is_last=True)


@given(st.text("abc-", max_size=30))
def test_iterations_are_whole_in_order_and_of_what_was_learned(calls):
    iteration, due = (), 0
    for call, place in zip(calls, places(calls), strict=True):
        if call == "-":
            due = 0
            continue
        if place.breaks_off:
            assert iteration
            assert iteration[due] != group(call)
            iteration, due = (), 0
        if place.learned:
            assert not iteration
            iteration = place.learned
        assert (place.number >= 0) == bool(iteration)
        if iteration:
            assert place.number == due
            assert iteration[due] == group(call)
            assert place.is_last == (due == len(iteration) - 1)
            due = (due + 1) % len(iteration)
