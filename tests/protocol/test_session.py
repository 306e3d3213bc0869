"""Two ends of a session, and all that connections between them can do to what they say."""

import copy
import random

import pytest

from nalb.errors import PeerError
from nalb.protocol.session import Envelope, Session, pack, unpack

SIDES = (0, 1)
SIGN = -1


class Pair:
    """Two ends that each have messages 1, 2, ... to say, and what is on its way between them."""

    def __init__(self, messages: int, signs: int, resets: int, repeats: int, overtakings: int):
        self.ends = (Session[int](), Session[int]())
        self.said, self.heard = [0, 0], ([], [])
        self.on_its_way: tuple[list[tuple[Envelope, int]], ...] = ([], [])  # to each side
        self.messages, self.signs = [messages] * 2, [signs] * 2
        self.resets, self.repeats, self.overtakings = resets, repeats, overtakings

    def key(self) -> str:
        """Equal for pairs whose futures are equal."""
        return repr([vars(end) for end in self.ends] + [v for k, v in sorted(vars(self).items()) if k != "ends"])

    def moves(self) -> list[tuple[str, int, int]]:
        """All that may happen next."""
        found = [("say", side, 0) for side in SIDES if self.said[side] < self.messages[side]]
        found += [("sign", side, 0) for side in SIDES if self.signs[side]]
        if self.resets and any(self.on_its_way):
            found += [("reset", 0, 0)]
        for side in SIDES:
            last = len(self.on_its_way[side]) if self.overtakings else 1
            for index in range(min(last, len(self.on_its_way[side]))):
                found.append(("arrive", side, index))
                if self.repeats:
                    found.append(("repeat", side, index))
        return found

    def play(self, what: str, side: int, index: int) -> None:
        """Let one thing happen."""
        if what == "say":
            self.said[side] += 1
            self.on_its_way[1 - side].append((self.ends[side].keep(self.said[side]), self.said[side]))
        elif what == "sign":
            self.signs[side] -= 1
            self.on_its_way[1 - side].append((self.ends[side].sign(), SIGN))
        elif what == "reset":  # all that is under way either way
            self.resets -= 1
            for way in self.on_its_way:
                way.clear()
        else:
            self.repeats -= what == "repeat"
            self.overtakings -= index > 0
            way = self.on_its_way[side]
            self.hear(side, *(way[index] if what == "repeat" else way.pop(index)))

    def hear(self, side: int, envelope: Envelope, message: int) -> None:
        """As conversations.py does."""
        end, back = self.ends[side], self.on_its_way[1 - side]
        is_next = end.accept(envelope)
        back.extend(end.again(envelope))
        if end.misses and not envelope.is_kept:
            back.append((end.sign(), SIGN))
        if is_next and message != SIGN:
            self.heard[side].append(message)
        assert self.heard[side] == list(range(1, len(self.heard[side]) + 1)), "each once, and in order"

    def check_end(self) -> None:
        """Once connections lose nothing more, a few signs bring all that was said."""
        for _ in range(2):
            for side in SIDES:
                self.on_its_way[1 - side].append((self.ends[side].sign(), SIGN))
            for _ in range(100):
                for side in SIDES:
                    if self.on_its_way[side]:
                        self.hear(side, *self.on_its_way[side].pop(0))
            assert not any(self.on_its_way), "the two never fall silent"
        assert [len(heard) for heard in self.heard] == self.said[::-1]
        assert [end.unconfirmed for end in self.ends] == [0, 0]


@pytest.mark.parametrize(
    ("messages", "signs", "resets", "repeats", "overtakings"),
    [(1, 1, 2, 0, 0), (1, 1, 1, 1, 0), (1, 1, 1, 0, 1)],
)
def test_each_message_arrives_once_and_in_order_whatever_connections_do(messages, signs, resets, repeats, overtakings):
    first = Pair(messages, signs, resets, repeats, overtakings)
    seen, queue = {first.key()}, [first]
    while queue:
        here = queue.pop()
        copy.deepcopy(here).check_end()
        for move in here.moves():
            after = copy.deepcopy(here)
            after.play(*move)
            if (key := after.key()) not in seen:
                seen.add(key)
                queue.append(after)
    assert len(seen) > 500


@pytest.mark.parametrize("seed", range(200))
def test_the_same_of_longer_talks_drawn_by_lot(seed):
    generator = random.Random(seed)
    pair = Pair(messages=6, signs=6, resets=4, repeats=4, overtakings=4)
    while moves := pair.moves():
        pair.play(*generator.choice(moves))
    pair.check_end()


def test_what_is_not_confirmed_is_kept_and_no_more():
    here, there = Session[str](), Session[str]()
    envelopes = [here.keep(text) for text in "abc"]
    there.accept(envelopes[0])
    here.accept(there.sign())
    assert here.unconfirmed == 2
    assert not there.accept(envelopes[2])
    here.accept(there.sign())
    assert [message for _, message in here.again(there.sign())] == ["b", "c"]


def test_a_sign_that_came_after_what_was_lost_is_no_news():
    here, there = Session[str](), Session[str]()
    here.keep("lost")
    assert not there.accept(here.sign())
    assert there.misses


def test_a_peer_that_lacks_what_was_confirmed_is_another():
    here, there = Session[str](), Session[str]()
    there.accept(here.keep("hello"))
    assert not here.is_of_another(there.sign())
    here.accept(there.sign())
    other = Session[str]()
    assert not other.accept(here.sign())
    assert here.is_of_another(other.sign())
    assert not here.is_of_another(other.keep("a refusal, which says why"))


def test_who_confirms_what_was_never_sent_is_refused():
    with pytest.raises(PeerError, match="confirms message 4 of 0"):
        Session[str]().accept(Envelope(0, 4, False, False))


@pytest.mark.parametrize("frame", [b"", b"\xc1", b"\x94\xff\x00\xc2\xc2", pack(Session[str]().sign()) + b"\x00"])
def test_an_envelope_that_is_none_is_the_peers_error(frame):
    with pytest.raises(PeerError, match="not an envelope"):
        unpack(frame)
