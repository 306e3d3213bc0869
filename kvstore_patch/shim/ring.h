/* A bounded queue of samples without locks: any thread adds, any thread takes, and a full queue drops the sample to be added.
 *
 * It is D. Vyukov's bounded queue. Position p is cell p mod RING_CELLS on lap p / RING_CELLS. A cell's turn is 2*lap when it
 * waits for that lap's sample and 2*lap + 1 when it holds the sample. So zeroed memory is an empty ring and needs no set-up.
 */
#ifndef NALB_RING_H
#define NALB_RING_H

#include <stdatomic.h>
#include <stdbool.h>

#include "shim.h"

#ifndef RING_CELLS
#define RING_CELLS 65536u /* a power of two: several seconds of small messages between two drains; 2.5 MB, touched as used */
#endif

struct ring {
  _Atomic uint64_t head; /* next position to take */
  _Atomic uint64_t tail; /* next position to fill */
  _Atomic uint64_t drops;
  struct {
    _Atomic uint64_t turn;
    struct nalb_sample sample;
  } cells[RING_CELLS];
};

static inline void ring_add(struct ring *ring, const struct nalb_sample *sample) {
  uint64_t at = atomic_load_explicit(&ring->tail, memory_order_relaxed);
  for (;;) {
    uint64_t want = at / RING_CELLS * 2;
    uint64_t turn = atomic_load_explicit(&ring->cells[at % RING_CELLS].turn, memory_order_acquire);
    if (turn == want) {
      if (!atomic_compare_exchange_weak_explicit(&ring->tail, &at, at + 1, memory_order_relaxed, memory_order_relaxed))
        continue; /* `at` is now the current tail */
      ring->cells[at % RING_CELLS].sample = *sample;
      atomic_store_explicit(&ring->cells[at % RING_CELLS].turn, want + 1, memory_order_release);
      return;
    }
    if (turn < want) { /* still holds the previous lap's sample */
      atomic_fetch_add_explicit(&ring->drops, 1, memory_order_relaxed);
      return;
    }
    at = atomic_load_explicit(&ring->tail, memory_order_relaxed);
  }
}

static inline bool ring_take(struct ring *ring, struct nalb_sample *out) {
  uint64_t at = atomic_load_explicit(&ring->head, memory_order_relaxed);
  for (;;) {
    uint64_t want = at / RING_CELLS * 2 + 1;
    uint64_t turn = atomic_load_explicit(&ring->cells[at % RING_CELLS].turn, memory_order_acquire);
    if (turn == want) {
      if (!atomic_compare_exchange_weak_explicit(&ring->head, &at, at + 1, memory_order_relaxed, memory_order_relaxed))
        continue;
      *out = ring->cells[at % RING_CELLS].sample;
      atomic_store_explicit(&ring->cells[at % RING_CELLS].turn, want + 1, memory_order_release);
      return true;
    }
    if (turn < want) return false; /* empty, or its producer is still writing */
    at = atomic_load_explicit(&ring->head, memory_order_relaxed);
  }
}

#endif
