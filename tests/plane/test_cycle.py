"""What an iteration is, learned from sizes alone."""

from hypothesis import given
from hypothesis import strategies as st

from nalb.plane.cycle import CycleRecorder

ELEMENTS = {"a": 3000, "b": 2000, "c": 5000, "d": 1500, "z": 4000, "y": 1000, "x": 7777}


def play(sums, recorder=None):
    """Per sum: its number in the iteration or -, with what was learned, and ! where the iteration breaks off."""
    recorder = recorder or CycleRecorder()
    names = {elements: name for name, elements in ELEMENTS.items()}
    said = []
    for name in sums:
        place = recorder.place(ELEMENTS[name], "float32")
        word = "!" if place.breaks_off else ""
        word += "".join(names[elements] for ((_, elements, _),) in place.learned)
        said.append(word + ("-" if place.number < 0 else str(place.number)) + ("." if place.is_last else ""))
    return " ".join(said)


def test_a_pattern_that_came_twice_is_learned():
    assert play("abcabcabc") == "- - - - - - abc0 1 2."
    assert play("aaaa") == "- - a0. 0."


def test_the_first_iteration_may_have_other_buckets():
    assert play("zx" + "ab" * 3) == "- - - - - - - -"
    assert play("zy" + "ab" * 3) == "- - - - - - ab0 1."


def test_a_pattern_does_not_begin_in_the_middle_of_an_iteration():
    """DDP's first buckets z and y hold the same elements as a and b; the last one stays, so that c a b comes twice first."""
    assert ELEMENTS["a"] + ELEMENTS["b"] == ELEMENTS["z"] + ELEMENTS["y"]
    assert play("zyc" + "abc" * 3) == "- - - - - - - - - abc0 1 2."


def test_foreign_sums_before_cost_one_iteration():
    assert play("x" + "ab" * 4) == "- - - - - - - ab0 1."


def test_repetitions_within_a_pattern():
    assert play("aabaabaab") == "- - - - - - aab0 1 2."
    assert play("aaabaaabaaab") == "- - a0. !- - - - - aaab0 1 2 3."


def test_a_pattern_that_breaks_off_soon_must_come_more_often():
    recorder = CycleRecorder()
    assert play("aaa", recorder) == "- - a0."
    assert play("x", recorder) == "!-"
    assert play("aaa", recorder) == "- - -"
    assert play("aa", recorder) == "- a0."


def test_a_pattern_that_lasted_comes_back_at_once_after_two_iterations():
    recorder = CycleRecorder()
    play("ab" * 20, recorder)
    assert play("a" + "x", recorder) == "0 !-"
    assert play("ab" * 4, recorder) == "- - - - - - ab0 1."


def test_dtypes_differ():
    recorder = CycleRecorder()
    places = [recorder.place(4096, dtype) for dtype in ("float32", "float16") * 3]
    assert [place.number for place in places] == [-1, -1, -1, -1, 0, 1]
    assert places[4].learned == (((0, 4096, "float32"),), ((1, 4096, "float16"),))


def test_groups_differ():
    recorder = CycleRecorder()
    *_, learned = (recorder.place(3000, "float32", group) for group in ("", "1") * 2 + ("",))
    assert learned.learned == (((0, 3000, "float32"),), (("1 of group 1", 3000, "float32"),))
    assert recorder.place(3000, "float32", "2").breaks_off


def test_memory_is_bounded_and_long_runs_stay_right():
    recorder = CycleRecorder(sums_most=32)
    for step in range(1000):
        assert recorder.place(1024 + step, "float32").number == -1
    said = play("abcd" * 100, recorder).split()
    assert said[12:17] == ["abcd0", "1", "2", "3.", "0"]
    assert said[-1] == "3."


@given(st.lists(st.integers(0, 2), max_size=6), st.lists(st.integers(0, 2), min_size=1, max_size=6))
def test_every_pattern_is_learned_in_the_end(before, pattern):
    """Whatever came before, and whatever the pattern looks like within."""
    recorder = CycleRecorder()
    for one in before:
        recorder.place(1024 + one, "float32")
    places = [recorder.place(1024 + one, "float32") for one in pattern * 40]
    last = places[-len(pattern) :]
    assert all(place.number >= 0 and not place.breaks_off and not place.learned for place in last)


@given(st.lists(st.integers(0, 2), min_size=1, max_size=60))
def test_a_learned_iteration_is_what_came_twice_before(sums):
    recorder, before = CycleRecorder(), []
    expected: tuple = ()
    number = 0
    for one in sums:
        place = recorder.place(1024 + one, "float32")
        if place.learned:
            pattern = [elements for ((_, elements, _),) in place.learned]
            assert before[-2 * len(pattern) :] == pattern * 2
            expected, number = pattern, 0
        if place.number >= 0:
            assert (place.number, expected[number]) == (number, 1024 + one)
            number = (number + 1) % len(expected)
            assert place.is_last == (number == 0)
        before.append(1024 + one)
