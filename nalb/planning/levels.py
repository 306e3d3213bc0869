"""An exchange by sites: the bytes that uplinks and LANs carry, and the shares of least time.

There are S sites and M gradient bytes. Machine i of a site of k machines leads r_i bytes: it sums them for its site (leaders.py).
Of these it owns m_i bytes: it sums them over all sites. In each site sum r_i = M; over all sites sum m_i = M; the machines of
site s together own m_s. The journey of a slice, and the links that its bytes load:

    members push it to the leader             out of each member, into the leader k - 1 times
    the leader pushes the sum to the owner    out of the leader, into the owner S - 1 times; nothing where owner and leader are one
    the owner answers                         out of the owner S - 1 times, into the leader
    the leader sends members the result       into each member, out of the leader k - 1 times
    MXNet's members push zeros before         out of each member, into the leader k - 1 times

    uplink of site s, each way    M + (S - 2) m_s
    into machine i                M + (1 + Z) (k - 1) r_i + (S - 2) m_i
    out of machine i              (1 + Z) M + (k - 1 - Z) r_i + (S - 2) m_i

with Z = 1 where members push zeros, else 0. For k = 1, where r_i = M, the last two loads equal the first: they are the loads of a
job without sites (nodes.py). So the sites are planned like the nodes of such a job, and their LANs limit further how much they can
own.
"""

import numpy as np

from nalb.planning.filling import Floats, fill, pour
from nalb.planning.sites import Sites, Uplinks

HALVINGS = 52  # steps of a bisection: as many as a float has binary digits
ROUNDING = 1e-9  # part of the model that counts as rounding


def uplink_load_bytes(sites: Sites, owned_bytes: Floats, model_bytes: float) -> Floats:
    """The bytes that each site's uplink carries each way, shape (S,), S >= 2. owned_bytes: m_i, shape (N,)."""
    return np.asarray(model_bytes + (sites.count - 2) * sites.totals(owned_bytes))


def lan_load_bytes(sites: Sites, owned_bytes: Floats, led_bytes: Floats, model_bytes: float) -> Floats:
    """The bytes that each machine sends and receives, shape (2, N). owned_bytes: m_i, led_bytes: r_i, shape (N,) each."""
    fixed, per_led = _lan_lines(sites, model_bytes)
    return np.asarray(fixed + per_led * led_bytes + (sites.count - 2) * owned_bytes)


def levels_s(
    uplinks: Uplinks, rates: Floats, owned_bytes: Floats, led_bytes: Floats, model_bytes: float
) -> tuple[Floats, Floats]:
    """Seconds that each site's way to the other sites takes, shape (S,), and each machine's link in its LAN, shape (N,).

    rates: of the machines' own links, out and in, bytes per second, shape (2, N). The link of a machine that is alone in its site
    is part of the way to the other sites, and its LAN takes no time.
    """
    sites = uplinks.sites
    wan_s = uplink_load_bytes(sites, owned_bytes, model_bytes) / ways(uplinks, rates)
    lan_s = (lan_load_bytes(sites, owned_bytes, led_bytes, model_bytes) / rates).max(axis=0)
    return np.asarray(wan_s), np.where(sites.machines == 1, 0.0, lan_s)


def least_led_bytes(sites: Sites, owned_bytes: Floats, model_bytes: float, rates: Floats | None) -> Floats:
    """The bytes r_i that each machine should lead, given the m_i that it owns, shape (N,), so that each LAN takes least time.

    min t_s  subject to  out_i <= t_s u_i,  in_i <= t_s d_i,  sum_i r_i = M,  r_i >= m_i. rates: as for `levels_s`; None: not
    known, so all count as equal. Cost: `fill` of each site.
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
    """The bytes r_i that each machine should lead, shape (N,), as even within each site as is possible without loss of time.

    The exchange takes as long as its slowest part. In a site whose LAN ends earlier, machines lead parts that are as equal as its
    LAN then allows. Uneven parts would only follow small differences of measured LAN rates, and leave nearly all bytes to few
    connections between sites. Cost: `least_led_bytes`.
    """
    sites = uplinks.sites
    least = least_led_bytes(sites, owned_bytes, model_bytes, rates)
    even = least_led_bytes(sites, owned_bytes, model_bytes, None)
    return _evened(uplinks, rates, model_bytes, (owned_bytes, least), (owned_bytes, even))[1]


def least_owned_bytes(uplinks: Uplinks, rates: Floats, model_bytes: float) -> Floats:
    """The bytes m_i that each machine should own, shape (N,), so that the slower one of both levels takes least time T.

    min T  subject to  M + (S - 2) m_s <= T U_s,  out_i <= T u_i,  in_i <= T d_i,  sum_s m_s = M, and in each site
    sum_i r_i = M,  sum_i m_i = m_s,  0 <= m_i <= r_i;
    U_s the rate of the uplink's slower direction. At a given T a site can own as many bytes as both its uplink and its LAN leave
    room for (`_Lans`); the level is found as in `fill`. Two sites carry M each way whatever they own, so they own equal parts.
    Cost: O(N) for each of about 60 halvings, and for each of HALVINGS for the split within sites.
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
    """The bytes m_i that each machine should own of its site's, shape (N,), as even as is possible without loss of time.

    of_site: the bytes m_s of each site, shape (S,), adding up to the model. A LAN that would make the exchange longer is split for
    the least time; other LANs are split as even as they then allow, see `even_led_bytes`.
    """
    sites = uplinks.sites
    least = _least_split(uplinks, rates, model_bytes, of_site)
    even = of_site[sites.place] / sites.machines
    least_led = least_led_bytes(sites, least, model_bytes, rates)
    return _evened(uplinks, rates, model_bytes, (least, least_led), (even, model_bytes / sites.machines))[0]


def _evened(
    uplinks: Uplinks, rates: Floats, model_bytes: float, least: tuple[Floats, Floats], even: tuple[Floats, Floats]
) -> tuple[Floats, Floats]:
    """Each site's point on the line from its `least` split to its `even` one: the nearest to `even` that is done in time.

    least, even: the bytes that each machine owns and leads, shape (N,) each, like the result. In time means no later than the
    slowest way or LAN with `least`.
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
    """The bytes m_i of each machine, shape (N,), with which each LAN takes the least time."""
    sites = uplinks.sites
    site = sites.place
    if sites.count == 2:  # owning takes no time: machines own in proportion to what they lead
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
    """The rate of the slower direction of each site's way to the others, bytes per second, shape (S,)."""
    return np.asarray(both_ways(uplinks, rates).min(axis=0))


def both_ways(uplinks: Uplinks, rates: Floats) -> Floats:
    """The rates of each site's way to the others, out and in, bytes per second, shape (2, S).

    Each is that of its uplink, or the sum of its machines' rates where that is less.
    """
    together = [uplinks.sites.totals(one) for one in rates]
    return np.minimum([uplinks.up, uplinks.down], together)


class _Lans:
    """The bytes that the LANs of more than two sites let their machines own.

    At level t, machine i that leads r may own the least of r, (t d_i - M - a r) / (S - 2) and (t u_i - (1 + Z) M - b r) / (S - 2),
    with a = (1 + Z)(k - 1) and b = k - 1 - Z. That is concave in r, with three straight pieces, whose slopes are the same for all
    machines of a site. So M is poured into all first pieces, then into all second ones, then into all third ones.
    """

    def __init__(self, sites: Sites, rates: Floats, model_bytes: float):
        self._sites, self._others = sites, sites.count - 2
        self._rates, self._model_bytes = rates, model_bytes
        self._fixed, self._slope = _lan_lines(sites, model_bytes)

    def room(self, level_s: Floats) -> tuple[Floats, Floats]:
        """The most bytes that each site can own if its LAN takes no longer than its level, shape (S,), and their split, shape (N,).

        level_s: seconds, shape (S,). The bytes are 0 where a LAN takes longer even if its site owns nothing.
        """
        sites, others, model_bytes = self._sites, self._others, self._model_bytes
        site = sites.place
        per_out, per_in = self._slope
        could = level_s[site] * self._rates
        spare_out, spare_in = spare = np.maximum(could - self._fixed, 0.0)
        first = np.minimum(spare_in / (per_in + others), spare_out / np.maximum(per_out + others, 1e-12))
        first = np.minimum(first, model_bytes)  # which is the most that a machine can lead
        third = np.divide(spare, self._slope, out=np.full(spare.shape, float(model_bytes)), where=self._slope > 0)
        third = np.minimum(third.min(axis=0), model_bytes)
        meets = per_in > per_out  # beyond `meet` the direction in leaves less room
        meet = np.divide(np.maximum(spare_in - spare_out, 0.0), per_in - per_out, out=third.copy(), where=meets)
        second = np.clip(meet, first, third)
        left, led = np.full(sites.count, model_bytes), np.zeros(len(site))
        for piece in (first, second - first, third - second):
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
    """(fixed bytes, bytes per byte led) of each machine's load without the part of owned bytes, out and in, shape (2, N) each."""
    members, zeros = sites.machines.astype(np.float64), float(sites.pushes_zeros)
    fixed = np.array([np.full(len(members), (1 + zeros) * model_bytes), np.full(len(members), model_bytes)])
    return fixed, np.array([members - 1 - zeros, (1 + zeros) * (members - 1)])
