/*
 * The delay line: carries packets between pairs of interfaces, holds each for its delay and loses some on purpose.
 *
 * A way is one direction of one link: packets come in on one packet socket and leave by another. Both sockets have
 * PACKET_VNET_HDR, so a bunch of TCP packets that the sender's kernel handed over as one (GSO) passes as one, and no
 * checksum is computed. All packets wait in one heap, by the moment they are due.
 *
 * Random numbers are hashes of (seed, number), not a state: packet n of a way is lost or not by its seed and n alone. Packets
 * are counted as they would be on a wire, so a bunch is that many packets. Where one of a bunch is lost, the rest goes on as
 * smaller bunches. Jitter is a function of time: a random value every 2 x jitter, straight lines between. So a delay
 * never falls faster than time passes, and packets stay in order by themselves.
 */
#ifndef NALB_DELAY_LINE_H
#define NALB_DELAY_LINE_H

#include <stdint.h>

#define NALB_DELAY_LINE_ABI 1
#define NALB_DELAY_LINE_EXPORT __attribute__((visibility("default")))

/* What happens to the packets of a way, or to those of a way to one destination. Fields as in network files. */
struct nalb_impairment {
    uint64_t delay_ns;
    uint64_t jitter_ns;   /* at most delay_ns */
    double loss_part;     /* 0 to 1 */
    double reorder_part;  /* of the packets that are left: those not held at all */
};

struct nalb_line_counters {
    uint64_t packets;       /* came in, as on a wire */
    uint64_t bunches;       /* the same, as handed over by the kernel */
    uint64_t lost;          /* on purpose, of packets */
    uint64_t late;          /* bunches that left more than NALB_LATE_NS after they were due */
    uint64_t worst_late_ns;
    uint64_t overrun;       /* bunches that the kernel dropped because they were not fetched in time */
    uint64_t refused;       /* bunches that the kernel did not take, gave in part, or that found no memory */
    uint64_t waiting_bytes; /* now */
    uint64_t is_realtime;   /* whether the thread has a real-time priority */
};

struct nalb_line;

NALB_DELAY_LINE_EXPORT uint32_t nalb_line_abi(void);
/* NULL: no memory. */
NALB_DELAY_LINE_EXPORT struct nalb_line *nalb_line_new(uint32_t num_links);
/* Before the run, once for each link: opens a socket on either interface. Way 2 x link leads from `first` to `second`, the next
 * way leads back; each has a seed. Returns 0 or -errno. */
NALB_DELAY_LINE_EXPORT int nalb_line_join(struct nalb_line *line, uint32_t link, const char *first, const char *second,
                                          uint64_t seed, uint64_t seed_back);
/* At any time: the impairment of a way's packets to an IPv4 address (network byte order), or with 0 to all others. */
NALB_DELAY_LINE_EXPORT int nalb_line_set(struct nalb_line *line, uint32_t way, uint32_t destination,
                                         const struct nalb_impairment *impairment);
NALB_DELAY_LINE_EXPORT int nalb_line_counters(struct nalb_line *line, struct nalb_line_counters *counters);
/* Carry packets; returns only if the kernel refuses something, -errno. */
NALB_DELAY_LINE_EXPORT int nalb_line_run(struct nalb_line *line);
/* Number `index` of a stream, from 0 to below 1. */
NALB_DELAY_LINE_EXPORT double nalb_line_uniform(uint64_t seed, uint64_t index);

#endif
