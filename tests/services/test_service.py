"""A fourth service beside the three, through the real coordinator and its real frames; and what services say of themselves."""

import ast
from dataclasses import fields
from pathlib import Path

import pytest

from nalb.errors import PeerError
from nalb.events import DoubtEvent
from nalb.failures import Cause, Phase, render
from nalb.options import JobOptions
from nalb.protocol import wire
from nalb.protocol.coordinator import Coordinator
from nalb.protocol.service import Service
from nalb.services import composition
from nalb.settings import from_environment
from tests.failures import when, who
from tests.protocol.test_coordinator import ENVIRONMENT, PEERS

ROOT = Path(__file__).resolve().parents[2]


class Vote(wire.Message, frozen=True):
    """A worker's choice."""

    choice: wire.Name


class Elected(wire.Message, frozen=True):
    """All workers' choice."""

    choice: wire.Name


class Election(Service):
    """Tells all workers what they chose; the job ends if they differ."""

    takes, sends = (Vote,), (Elected,)
    chosen = None

    def take(self, process, message, now_s):
        if self.chosen not in (None, message.choice):
            return process.failure(Cause.UNEQUAL, f"chooses {message.choice} and another {self.chosen}")
        if self.chosen is None:
            self.events.append(DoubtEvent(at_s=now_s, process=process.name, node=process.hello.node, reason="alone"))
        for worker in self.members.workers if self.chosen else ():
            self.send(worker, Elected(message.choice))
        self.chosen = message.choice
        return None


class Job:
    """Four processes whose messages reach the coordinator as frames. services: besides the three."""

    def __init__(self, *services):
        settings = from_environment(ENVIRONMENT, "host")
        at_coordinator, at_client = composition.decoders((*composition.SERVICES, *services))
        self.decode, self.heard = at_coordinator.decode, lambda frame: at_client.decode(frame, "the coordinator")

        def compose(members, observers):
            return [*composition.services_of(settings, members, observers), *(one(members) for one in services)]

        self.state = Coordinator(settings, 0.0, compose)
        for name, (rank, role, node) in PEERS.items():
            self.say(name, wire.Hello(wire.VERSION, role, node, rank, 1))

    def say(self, name, message):
        """Send it; the kinds of what comes back, by process."""
        self.state.receive(name.encode(), self.decode(wire.encode(message), name), 1.0)
        sent = [(identity.decode(), self.heard(wire.encode(answer))) for identity, answer in self.state.outbox]
        self.state.outbox.clear()
        return sent


def test_a_fourth_service_answers_and_tells():
    job = Job(Election)
    assert job.say("w0", Vote("left")) == []
    assert job.say("w1", Vote("left")) == [("w0", Elected("left")), ("w1", Elected("left"))]
    assert [event.process for event in job.state.events if isinstance(event, DoubtEvent)] == ["worker n0"]
    assert {type(answer) for _, answer in job.say("w0", wire.Goodbye())} == set()
    assert {type(answer) for _, answer in job.say("w1", wire.Goodbye())} == {wire.Farewell}


def test_a_fourth_service_ends_the_job():
    job = Job(Election)
    job.say("w0", Vote("left"))
    sent = job.say("w1", Vote("right"))
    assert sent == [(name, wire.Abort(job.state.verdict)) for name in PEERS]
    verdict = job.state.verdict
    assert (verdict.cause, who(verdict), when(verdict)) == (Cause.UNEQUAL, ("worker", "n1"), (Phase.INIT, None))
    assert "chooses right" in render(verdict)


def test_a_job_does_not_know_the_messages_of_a_service_that_it_lacks():
    with pytest.raises(PeerError, match="w0 sent a control message that is not ours"):
        Job().say("w0", Vote("left"))
    job = Job(Election)
    job.state.receive(b"s0", Vote("left"), 1.0)  # only workers vote
    assert job.state.rejected == {"message out of place": 1}


def options_read(path, properties):
    """The options that a module reads from `settings`, those that properties of the record read included."""
    read = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("settings", "self._settings"):
            read |= properties.get(node.attr, {node.attr})
    return read


def test_each_service_names_the_options_that_it_reads():
    names = {field.name for field in fields(JobOptions)}
    properties = {}
    for path in (ROOT / "nalb" / "options.py", ROOT / "nalb" / "settings.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                properties[node.name] = {
                    one.attr
                    for one in ast.walk(node)
                    if isinstance(one, ast.Attribute) and ast.unparse(one.value) == "self"
                }
    for service in composition.SERVICES:
        folder = (ROOT / (service.__module__.replace(".", "/") + ".py")).parent
        read = set().union(*(options_read(path, properties) for path in folder.glob("*.py"))) & names
        assert set(service.options) == read, service.__name__
