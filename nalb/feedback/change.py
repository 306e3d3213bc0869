"""When something better is worth a change: once the present choice has cost as much as the change. Pure.

So no threshold is tuned, and noise changes nothing: a choice that is hardly better saves hardly anything. By the time of the change
no more was lost than twice what the change costs (renting or buying skis: Karlin et al., Competitive snoopy caching, 1988).
"""


class ChangeDebt:
    """The seconds that the present choice has cost so far, beside the best one."""

    def __init__(self) -> None:
        self._owed_s = 0.0

    def is_due(self, saved_s: float, change_s: float) -> bool:
        """Take in one iteration; returns whether to change now.

        saved_s: what the best choice saves in it. change_s: what a change costs.
        """
        self._owed_s = self._owed_s + saved_s if saved_s > 0 else 0.0
        if not self._owed_s or self._owed_s < change_s:
            return False
        self._owed_s = 0.0
        return True
