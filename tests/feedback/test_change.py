"""When a change is due: once the present choice has cost as much."""

from nalb.feedback.change import ChangeDebt


def test_a_change_is_due_once_it_would_have_paid():
    debt = ChangeDebt()
    assert [debt.is_due(0.4, 1.0) for _ in range(5)] == [False, False, True, False, False]


def test_an_iteration_in_which_the_present_choice_is_best_begins_anew():
    debt = ChangeDebt()
    assert not debt.is_due(0.9, 1.0)
    assert not debt.is_due(0.0, 1.0)
    assert not debt.is_due(0.9, 1.0)
    assert debt.is_due(0.2, 1.0)


def test_hardly_anything_saved_changes_nothing_for_long():
    debt = ChangeDebt()
    assert not any(debt.is_due(0.001 * (-1) ** number, 1.0) for number in range(10_000))


def test_nothing_saved_changes_nothing_whatever_a_change_costs():
    assert not ChangeDebt().is_due(0.0, 0.0)
