/*
 * The delay line: carries packets between pairs of interfaces, holds each for its delay and loses some on purpose.
 *
 * A way is one direction of one link: packets come in on one packet socket and leave by another. Both sockets have
 * PACKET_VNET_HDR, so a bunch of TCP packets that the sender's kernel handed over as one (GSO) passes as one, and no
 * checksum is computed. All packets wait in one heap, by the moment they are due.
 *
 * Random numbers are hashes of (seed, number), without a state: the way's seed and n alone decide whether packet n of a way is
 * lost. Packets are counted as they would be on a wire, so a bunch counts as its packets. If a packet of a bunch is lost, the
 * rest goes on as smaller bunches. Jitter is a function of time: a random value every 2 x jitter, and straight lines between
 * these values. So a delay never falls faster than time passes, and packets stay in order by themselves.
 */
#ifndef NALB_DELAY_LINE_H
#define NALB_DELAY_LINE_H

#include <stdint.h>

#define NALB_DELAY_LINE_ABI 1
#define NALB_DELAY_LINE_EXPORT __attribute__((visibility("default")))

/* The impairment of a way's packets to one destination, or to all others. The fields are those of network files. */
struct nalb_impairment {
    uint64_t delay_ns;
    uint64_t jitter_ns;   /* at most delay_ns */
    double loss_part;     /* 0 to 1 */
    double reorder_part;  /* 0 to 1: the part of the bunches that is not held at all */
};

struct nalb_line_counters {
    uint64_t packets;       /* that came in, counted as on a wire */
    uint64_t bunches;       /* that came in, counted as the kernel hands them over */
    uint64_t lost;          /* packets that were lost on purpose */
    uint64_t late;          /* bunches that left more than NALB_LATE_NS after they were due */
    uint64_t worst_late_ns;
    uint64_t overrun;       /* bunches that the kernel dropped because they were not fetched in time */
    uint64_t refused;       /* bunches that the kernel did not take or gave in part, or for which there was no memory */
    uint64_t waiting_bytes; /* what the line holds now */
    uint64_t is_realtime;   /* whether the thread has a real-time priority */
};

struct nalb_line;

NALB_DELAY_LINE_EXPORT uint32_t nalb_line_abi(void);
/* Makes a line for so many links. Returns NULL if there is no memory. */
NALB_DELAY_LINE_EXPORT struct nalb_line *nalb_line_new(uint32_t num_links);
/* Opens a socket on both interfaces of a link; to be called before the run, once for each link. Way 2 x link leads from `first`
 * to `second`, the next way leads back; each has a seed. Returns 0 or -errno. */
NALB_DELAY_LINE_EXPORT int nalb_line_join(struct nalb_line *line, uint32_t link, const char *first, const char *second,
                                          uint64_t seed, uint64_t seed_back);
/* Sets, at any time, the impairment of a way's packets to an IPv4 address (network byte order), or with 0 to all others. Returns
 * 0 or -errno. */
NALB_DELAY_LINE_EXPORT int nalb_line_set(struct nalb_line *line, uint32_t way, uint32_t destination,
                                         const struct nalb_impairment *impairment);
NALB_DELAY_LINE_EXPORT int nalb_line_counters(struct nalb_line *line, struct nalb_line_counters *counters);
/* Carries packets; returns -errno, and only if the kernel refuses something. */
NALB_DELAY_LINE_EXPORT int nalb_line_run(struct nalb_line *line);
/* Returns number `index` of a seed's stream, from 0 to below 1. */
NALB_DELAY_LINE_EXPORT double nalb_line_uniform(uint64_t seed, uint64_t index);

#endif
