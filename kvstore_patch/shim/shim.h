/* The functions that the shim offers to the process that it is preloaded into. kvstore_patch/shim/__init__.py mirrors this file.
 *
 * The shim stands between ps-lite (inside libmxnet.so) and libzmq. It announces every data message with a one-frame forecast,
 * swallows forecasts on receipt, and notes when announced messages came in. Times are CLOCK_MONOTONIC.
 */
#ifndef NALB_SHIM_H
#define NALB_SHIM_H

#include <stdint.h>

#define NALB_SHIM_ABI 4 /* raise with any change of this file that an older binding would misread */

struct nalb_sample { /* one received message that a forecast had announced */
  int32_t peer;        /* ps-lite id of the sender */
  uint64_t size_bytes; /* all frames of the message, without the identity */
  uint64_t start_ns;   /* when its forecast arrived */
  uint64_t end_ns;     /* when all of it had arrived */
};

/* The list of counters, for the struct below and the atomics in shim.c. `messages_` and `bytes_` count messages with data. */
#define NALB_COUNTERS(X)                                                                             \
  X(forecasts_sent)                                                                                  \
  X(forecasts_swallowed)                                                                             \
  X(forecast_failures) /* a forecast that libzmq did not take; its message went out all the same */  \
  X(messages_sent)                                                                                   \
  X(messages_received)                                                                               \
  X(bytes_sent)                                                                                      \
  X(bytes_received)                                                                                  \
  X(hostile_frames)    /* frames that no ps-lite and no shim of this version sends */                 \
  X(foreign_messages)  /* messages of other jobs' processes, which are dropped */                    \
  X(untracked_sockets) /* sockets for which the table has no room: passed through, not measured */  \
  X(handshakes_allowed) /* peers whose key is the job's; only where NALB_KEYS encrypts */            \
  X(handshakes_refused) /* peers whose handshake was right but whose key is not the job's */

struct nalb_counters {
#define NALB_COUNTER_FIELD(name) uint64_t name;
  NALB_COUNTERS(NALB_COUNTER_FIELD)
#undef NALB_COUNTER_FIELD
};

int nalb_shim_abi(void);                                 /* NALB_SHIM_ABI of the library that is loaded */
int nalb_shim_in_front(void);                            /* 1: zmq_* calls of this process reach the shim first */
const char *nalb_shim_transport(void);                   /* file of the libzmq under ps-lite; "" before its first call */
int nalb_shim_drain(struct nalb_sample *out, int limit); /* takes the oldest samples; returns how many */
uint64_t nalb_shim_drops(void);                          /* samples lost to a full ring, so far */
void nalb_shim_mark(void);                               /* makes the next message that is sent the first */
uint64_t nalb_shim_first_sent_ns(void);                  /* when the first message's sending began; 0: not yet */
int nalb_shim_self_id(void);                             /* this process's ps-lite id; -1 before it has one */
void nalb_shim_set_forecasts(int on);                    /* turns forecasts on or off from the next message on; they are
                                                          * on at the start, unless NALB_SHIM_FORECASTS=0 */
void nalb_shim_counters(struct nalb_counters *out);

#endif
