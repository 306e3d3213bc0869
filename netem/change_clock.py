"""Applies a network's timed changes while a job runs."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

from nalb.process.exhaustion import explained
from netem.network import Network
from netem.schedule import CpuQuotas, Delays, NodeRates, PairCaps, TimedChange, timed_changes

OnChange = Callable[[float, dict[str, Any]], None]  # (elapsed_s, description)
SetRates = Callable[[NodeRates, PairCaps, Delays], None]
SetQuotas = Callable[[CpuQuotas], None]
LATE_S = 0.5  # a change that is made later than this is worth a warning
log = logging.getLogger(__name__)


def describe(change: TimedChange) -> dict[str, Any]:
    """The change as data for run.json or a log line."""
    described: dict[str, Any] = {
        "at_s": change.at_s,
        "nodes": {name: {"up_mbps": up, "down_mbps": down} for name, (up, down) in change.node_rates.items()},
        "links": [{"src": src, "dst": dst, "mbps": mbps} for (src, dst), mbps in change.pair_caps.items()],
    }
    if change.site_rates:
        described["sites"] = {
            name: {"up_mbps": up, "down_mbps": down} for name, (up, down) in change.site_rates.items()
        }
    if change.delays:
        described["delays"] = {
            name: {"up_ms": up_ms, "down_ms": down_ms} for name, (up_ms, down_ms) in change.delays.items()
        }
    return described | ({"cpu_quotas": dict(change.cpu_quotas)} if change.cpu_quotas else {})


class ChangeClock:
    """A thread that makes each change at its time after the start. Changes that are overdue together are made as one, so a busy
    machine makes fewer of them and does not fall behind. If the thread fails, the next check() or stop() raises its error, and so
    does the end of a `with`."""

    def __init__(
        self,
        network: Network,
        set_rates: SetRates,
        on_change: OnChange,
        now_s: Callable[[], float] = time.monotonic,
        set_quotas: SetQuotas | None = None,  # needed if the file has CPU quotas
    ):
        """Start the thread; 0 s is now. The thread calls on_change after each change was made and read back."""
        assert set_quotas is not None or not network.limits_cpu
        self._network = network
        self._set_quotas = set_quotas
        self._set_rates = set_rates
        self._on_change = on_change
        self._now_s = now_s
        self._error: BaseException | None = None
        self._is_late = False  # a late change was told
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(now_s(),), name="change clock", daemon=True)
        with explained("the thread that changes rates and quotas"):
            self._thread.start()

    def check(self) -> None:
        """Raise the error that stopped the thread, if there was one."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def stop(self) -> None:
        """End the thread after a change that is under way, and raise its error, if any. Rates and quotas stay as they are.

        A second call does nothing.
        """
        self._stopping.set()
        self._thread.join()
        self.check()

    def __enter__(self) -> "ChangeClock":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _run(self, start_s: float) -> None:
        try:
            for change in self._due(start_s):
                rates = change.node_rates | change.site_rates
                if rates or change.pair_caps:  # a delay changes only together with a rate
                    self._set_rates(rates, change.pair_caps, change.delays)
                if change.cpu_quotas and self._set_quotas is not None:
                    self._set_quotas(change.cpu_quotas)
                self._on_change(self._now_s() - start_s, describe(change))
        except BaseException as error:
            self._error = error

    def _due(self, start_s: float) -> Iterator[TimedChange]:
        """Yield each change at its time, and as one those that are overdue together, until the clock is stopped."""
        changes = timed_changes(self._network)
        upcoming = next(changes, None)
        while upcoming is not None:
            while (left_s := start_s + upcoming.at_s - self._now_s()) > 0:
                if self._stopping.wait(min(left_s, threading.TIMEOUT_MAX)):
                    return
            if self._stopping.is_set():
                return
            self._tell_late(-left_s)
            change, now_s = upcoming, self._now_s()
            while (upcoming := next(changes, None)) is not None and start_s + upcoming.at_s <= now_s:
                change = _joined(change, upcoming)
            yield change

    def _tell_late(self, late_s: float) -> None:
        """Warn of the first change that is made so much later than its time."""
        if late_s > LATE_S and not self._is_late:
            self._is_late = True
            log.warning(
                "network %s: a change came %.1f s late: the machine is busy, and makes changes together that are due",
                self._network.name,
                late_s,
            )


def _joined(first: TimedChange, then: TimedChange) -> TimedChange:
    """Two changes as one: the numbers that hold after the later one."""
    return TimedChange(
        then.at_s,
        first.node_rates | then.node_rates,
        first.pair_caps | then.pair_caps,
        first.cpu_quotas | then.cpu_quotas,
        first.site_rates | then.site_rates,
        first.delays | then.delays,
    )
