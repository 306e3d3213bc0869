"""An exchange by sites: what uplinks and LANs carry, and the shares of least time.

S sites, M gradient bytes. Machine i of a site of k machines leads r_i bytes: it sums them for its site (leaders.py). Of these it
owns m_i bytes: it sums them for all. In each site sum r_i = M; over all sites sum m_i = M; m_s is what site s owns in all. The
journey of a slice, and what its bytes load:

    members push it to the leader             out of each member, into the leader k - 1 times
    the leader pushes the sum to the owner    out of the leader, into the owner S - 1 times; nothing where they are one
    the owner answers                         out of the owner S - 1 times, into the leader
    members push ZEROS, the leader answers    out of each member, into the leader k - 1 times, and the same back

    uplink of site s, each way    M + (S - 2) m_s
    into machine i                M + (1 + Z) (k - 1) r_i + (S - 2) m_i
    out of machine i              (1 + Z) M + (k - 1 - Z) r_i + (S - 2) m_i

with Z = ZEROS. For k = 1, where r_i = M, the last two are the first: the loads of a job without sites (nodes.py). So the sites are
the nodes of that star, and their LANs are one more limit on what they can own.
"""

import numpy as np

from nalb.planning.filling import Floats, fill, pour
from nalb.planning.sites import Sites, Uplinks

ZEROS = 1.0  # bytes that a member pushes for each byte of a result: MXNet answers pushes alone
HALVINGS = 52  # of a level: as many as a float has binary digits
ROUNDING = 1e-9  # of the model


def uplink_load_bytes(sites: Sites, owned_bytes: Floats, model_bytes: float) -> Floats:
    """What the uplink of each site carries each way: bytes, shape (S,), S >= 2. owned_bytes: m_i, shape (N,)."""
    return np.asarray(model_bytes + (sites.count - 2) * sites.totals(owned_bytes))


def lan_load_bytes(sites: Sites, owned_bytes: Floats, led_bytes: Floats, model_bytes: float) -> Floats:
    """What each machine carries, out of it and into it: bytes, shape (2, N). led_bytes: r_i, shape (N,)."""
    fixed, per_led = _lan_lines(sites, model_bytes)
    return np.asarray(fixed + per_led * led_bytes + (sites.count - 2) * owned_bytes)


def levels_s(
    uplinks: Uplinks, rates: Floats, owned_bytes: Floats, led_bytes: Floats, model_bytes: float
) -> tuple[Floats, Floats]:
    """How long each site's way to the others takes, shape (S,), and each machine's in its LAN, shape (N,); seconds.

    rates: of the machines' own links, out and in, bytes per second, shape (2, N). The link of a machine alone in its site is part
    of that way; its LAN takes no time.
    """
    sites = uplinks.sites
    wan_s = uplink_load_bytes(sites, owned_bytes, model_bytes) / ways(uplinks, rates)
    lan_s = (lan_load_bytes(sites, owned_bytes, led_bytes, model_bytes) / rates).max(axis=0)
    return np.asarray(wan_s), np.where(sites.machines == 1, 0.0, lan_s)


def least_led_bytes(sites: Sites, owned_bytes: Floats, model_bytes: float, rates: Floats | None) -> Floats:
    """What each machine should lead, given what it owns: r_i, bytes, shape (N,), of least time of each LAN.

    min t_s  subject to  out_i <= t_s u_i,  in_i <= t_s d_i,  sum_i r_i = M,  r_i >= m_i. rates None: not known, all alike.
    Cost: `fill` of each site.
    """
    led = np.array(owned_bytes, dtype=np.float64)
    rates = np.ones((2, len(led))) if rates is None else rates
    start = lan_load_bytes(sites, owned_bytes, led, model_bytes) / rates
    slope = _lan_lines(sites, model_bytes)[1] / rates
    for members in map(list, sites.members):
        left = model_bytes - led[members].sum()
        if len(members) == 1:
            led[members] = model_bytes
        elif left > 0:
            led[members] += fill(start[:, members], slope[:, members], left)
    return led


def even_led_bytes(uplinks: Uplinks, owned_bytes: Floats, model_bytes: float, rates: Floats) -> Floats:
    """What each machine should lead, as evenly within its site as costs no time: r_i, bytes, shape (N,).

    The exchange takes as long as its slowest part. A site whose LAN is done before leads in parts as equal as its LAN then allows:
    uneven parts would follow from nothing but LAN rates that were measured a little apart, and few connections between sites would
    carry all. Cost: `least_led_bytes`.
    """
    sites = uplinks.sites
    least = least_led_bytes(sites, owned_bytes, model_bytes, rates)
    even = least_led_bytes(sites, owned_bytes, model_bytes, None)
    return _evened(uplinks, rates, model_bytes, (owned_bytes, least), (owned_bytes, even))[1]


def least_owned_bytes(uplinks: Uplinks, rates: Floats, model_bytes: float) -> Floats:
    """What each machine should own: m_i, bytes, shape (N,), of the least T of both levels.

    min T  subject to  M + (S - 2) m_s <= T U_s,  out_i <= T u_i,  in_i <= T d_i,  sum_s m_s = M, and in each site
    sum_i r_i = M,  sum_i m_i = m_s,  0 <= m_i <= r_i;
    U_s the smaller direction of the uplink. At a given T a site can own what both its uplink and its LAN leave room for
    (`_Lans`); the level is found as in `fill`. Two sites carry M each way whatever they own: equal parts. Cost: O(N) for each
    of about 60 halvings, and of HALVINGS for the split within sites.
    """
    sites = uplinks.sites
    if sites.count == 2:
        return split(uplinks, rates, model_bytes, np.full(2, model_bytes / 2))
    rate, others, lans = ways(uplinks, rates), sites.count - 2, _Lans(sites, rates, model_bytes)

    def fits(level_s: float) -> Floats:
        room = (level_s * rate - model_bytes) / others
        lan_room = lans.room(np.full(sites.count, level_s))[0]
        return np.clip(np.minimum(room, lan_room), 0.0, model_bytes)

    low_s = high_s = 1.0
    while fits(high_s).sum() < model_bytes:
        low_s, high_s = high_s, 2 * high_s
    while fits(low_s).sum() >= model_bytes:
        low_s, high_s = low_s / 2, low_s
    return split(uplinks, rates, model_bytes, pour(fits, low_s, high_s, model_bytes))


def split(uplinks: Uplinks, rates: Floats, model_bytes: float, of_site: Floats) -> Floats:
    """What each machine should own of what its site owns, as evenly as costs no time: m_i, bytes, shape (N,).

    of_site: m_s, shape (S,), adding up to the model. A LAN that would make the exchange longer takes the least time; for others see
    `even_led_bytes`.
    """
    sites = uplinks.sites
    least = _least_split(uplinks, rates, model_bytes, of_site)
    even = of_site[sites.place] / sites.machines
    least_led = least_led_bytes(sites, least, model_bytes, rates)
    return _evened(uplinks, rates, model_bytes, (least, least_led), (even, model_bytes / sites.machines))[0]


def _evened(
    uplinks: Uplinks, rates: Floats, model_bytes: float, least: tuple[Floats, Floats], even: tuple[Floats, Floats]
) -> tuple[Floats, Floats]:
    """Each site on the line from its `least` split to its `even` one, as far as it can go and be done in time.

    least, even: what each machine owns and leads, shape (N,) each, like the result. In time is what the slowest way or LAN takes
    with `least`.
    """
    sites = uplinks.sites
    level_s = max(float(part_s.max()) for part_s in levels_s(uplinks, rates, *least, model_bytes))
    least_s, even_s = (lan_load_bytes(sites, *one, model_bytes) / rates for one in (least, even))
    over_s = np.maximum(even_s - level_s, 0.0)
    back = np.divide(over_s, even_s - least_s, out=np.zeros(over_s.shape), where=over_s > 0).max(axis=0)
    farthest_back = np.zeros(sites.count)
    np.maximum.at(farthest_back, sites.place, np.minimum(back, 1.0))
    back_of = farthest_back[sites.place]
    owned, led = (there + back_of * (here - there) for here, there in zip(least, even, strict=True))
    return owned, led


def _least_split(uplinks: Uplinks, rates: Floats, model_bytes: float, of_site: Floats) -> Floats:
    """The split with which each LAN takes the least time."""
    sites = uplinks.sites
    site = sites.place
    if sites.count == 2:  # owning costs nothing: in proportion to what each leads
        led = least_led_bytes(sites, np.zeros(len(site)), model_bytes, rates)
        return np.asarray(led * of_site[site] / model_bytes)
    lans, needed = _Lans(sites, rates, model_bytes), of_site * (1 - ROUNDING)
    low_s, high_s = np.zeros(sites.count), np.ones(sites.count)
    while (is_little := lans.room(high_s)[0] < needed).any():
        high_s[is_little] *= 2
    for _ in range(HALVINGS):
        middle_s = (low_s + high_s) / 2
        is_enough = lans.room(middle_s)[0] >= needed
        high_s, low_s = np.where(is_enough, middle_s, high_s), np.where(is_enough, low_s, middle_s)
    room, most = lans.room(high_s)
    part = np.divide(of_site, room, out=np.zeros(sites.count), where=room > 0)
    return np.asarray(most * part[site])


def ways(uplinks: Uplinks, rates: Floats) -> Floats:
    """The rate of each site's way to the others, bytes per second, shape (S,): its uplink's, or its machines' links together."""
    together = [uplinks.sites.totals(one) for one in rates]
    return np.asarray(np.minimum.reduce([uplinks.up, uplinks.down, *together]))


class _Lans:
    """What the LANs of more than two sites leave room for.

    At level t, machine i that leads r may own the least of r, (t d_i - M - a r) / (S - 2) and (t u_i - (1 + Z) M - b r) / (S - 2),
    a = (1 + Z)(k - 1) and b = k - 1 - Z: concave in r, with three straight pieces, which are equally steep for all machines of a
    site. So M is poured into all first pieces, then into all second, then into all third ones.
    """

    def __init__(self, sites: Sites, rates: Floats, model_bytes: float):
        self._sites, self._others = sites, sites.count - 2
        self._rates, self._model_bytes = rates, model_bytes
        self._fixed, self._slope = _lan_lines(sites, model_bytes)

    def room(self, level_s: Floats) -> tuple[Floats, Floats]:
        """The most that each site can own so that its LAN takes no longer than its level, shape (S,), and its split, shape (N,).

        level_s: per site, shape (S,). 0 where even owning nothing takes longer.
        """
        sites, others, model_bytes = self._sites, self._others, self._model_bytes
        site = sites.place
        per_out, per_in = self._slope
        could = level_s[site] * self._rates
        spare_out, spare_in = spare = np.maximum(could - self._fixed, 0.0)
        first = np.minimum(spare_in / (per_in + others), spare_out / np.maximum(per_out + others, 1e-12))
        third = np.minimum(
            *np.divide(spare[::-1], self._slope[::-1], out=np.full(spare.shape, np.inf), where=self._slope[::-1] > 0)
        )
        meets = per_in > per_out  # from there on the way in leaves less room
        meet = np.divide(np.maximum(spare_in - spare_out, 0.0), per_in - per_out, out=third.copy(), where=meets)
        second = np.clip(meet, first, third)
        left, led = np.full(sites.count, model_bytes), np.zeros(len(site))
        for piece in np.minimum([first, second - first, third - second], model_bytes):
            whole = sites.totals(piece)
            part = np.divide(np.minimum(left, whole), whole, out=np.zeros(len(whole)), where=whole > 0)
            led += part[site] * piece
            left = left - part * whole
        room = ((spare - self._slope * led) / others).min(axis=0)
        is_possible = (left <= ROUNDING * model_bytes) & (sites.totals((could < self._fixed).any(axis=0)) == 0)
        owned = np.where(is_possible[site], np.clip(np.minimum(room, led), 0.0, model_bytes), 0.0)
        alone = np.clip((could.min(axis=0) - model_bytes) / others, 0.0, model_bytes)
        owned = np.where(sites.machines == 1, alone, owned)
        return sites.totals(owned), owned


def _lan_lines(sites: Sites, model_bytes: float) -> tuple[Floats, Floats]:
    """(fixed, per byte led) of what a machine carries beside what it owns, out of it and into it, each shape (2, N)."""
    members = sites.machines.astype(np.float64)
    fixed = np.array([np.full(len(members), (1 + ZEROS) * model_bytes), np.full(len(members), model_bytes)])
    return fixed, np.array([members - 1 - ZEROS, (1 + ZEROS) * (members - 1)])
