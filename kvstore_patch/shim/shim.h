/* What the shim offers to the process that it is preloaded into. kvstore_patch/shim/__init__.py mirrors this file.
 *
 * The shim stands between ps-lite (inside libmxnet.so) and libzmq. It announces every data message with a one-frame forecast,
 * swallows forecasts on receipt, and notes when announced messages came in. Times are CLOCK_MONOTONIC.
 */
#ifndef NALB_SHIM_H
#define NALB_SHIM_H

#include <stdint.h>

#define NALB_SHIM_ABI 3 /* raise with any change of this file that an older binding would misread */

struct nalb_sample { /* one received message that a forecast had announced */
  int32_t peer;        /* ps-lite id of the sender */
  uint64_t size_bytes; /* all frames of the message, without the identity */
  uint64_t start_ns;   /* its forecast arrived */
  uint64_t end_ns;     /* it arrived as a whole */
};

/* Each counter once: the struct below, the atomics in shim.c. Messages are those that carry data. */
#define NALB_COUNTERS(X)                                                                             \
  X(forecasts_sent)                                                                                  \
  X(forecasts_swallowed)                                                                             \
  X(forecast_failures) /* a forecast that libzmq did not take; its message went out all the same */  \
  X(messages_sent)                                                                                   \
  X(messages_received)                                                                               \
  X(bytes_sent)                                                                                      \
  X(bytes_received)                                                                                  \
  X(hostile_frames)    /* what no ps-lite and no shim of this version sends */                        \
  X(untracked_sockets) /* sockets beyond the table: passed through, not measured */                 \
  X(handshakes_allowed) /* peers whose key is the job's; only where NALB_KEYS encrypts */            \
  X(handshakes_refused) /* peers that shook hands well, but with a stranger's key */

struct nalb_counters {
#define NALB_COUNTER_FIELD(name) uint64_t name;
  NALB_COUNTERS(NALB_COUNTER_FIELD)
#undef NALB_COUNTER_FIELD
};

int nalb_shim_abi(void);                                 /* NALB_SHIM_ABI of the library that is loaded */
int nalb_shim_in_front(void);                            /* 1: zmq_* calls of this process reach the shim first */
const char *nalb_shim_transport(void);                   /* file of the libzmq under ps-lite; "" before its first call */
int nalb_shim_drain(struct nalb_sample *out, int limit); /* oldest samples first; how many */
uint64_t nalb_shim_drops(void);                          /* samples lost to a full ring, so far */
void nalb_shim_mark(void);                               /* the next message that is sent is the first */
uint64_t nalb_shim_first_sent_ns(void);                  /* when it was handed over, forecast and all; 0: not yet */
int nalb_shim_self_id(void);                             /* this process's ps-lite id; -1 before it has one */
void nalb_shim_set_forecasts(int on);                    /* send forecasts or not, from the next message on; on
                                                          * at the start, unless NALB_SHIM_FORECASTS=0 */
void nalb_shim_counters(struct nalb_counters *out);

#endif
