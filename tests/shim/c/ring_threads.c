/* Producers on four threads against one consumer on a ring of 64 cells: every sample once and whole, or counted as dropped. */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>

#define RING_CELLS 64u
#include "ring.h"

enum { PRODUCERS = 4, EACH = 50000 };
static struct ring ring;
static _Atomic int running = PRODUCERS;

static void *produce(void *number) {
  for (uint64_t i = 0; i < EACH; i++) {
    struct nalb_sample sample = {(int32_t)(intptr_t)number, i, i + 1, i + 2};
    ring_add(&ring, &sample);
  }
  atomic_fetch_sub(&running, 1);
  return NULL;
}

int main(void) {
  pthread_t producers[PRODUCERS];
  uint64_t taken = 0, next[PRODUCERS] = {0};
  int torn = 0, disordered = 0;
  for (intptr_t i = 0; i < PRODUCERS; i++) pthread_create(&producers[i], NULL, produce, (void *)i);
  for (;;) {
    struct nalb_sample sample;
    int done = atomic_load(&running) == 0;
    if (!ring_take(&ring, &sample)) {
      if (done) break;
      continue;
    }
    taken++;
    if (sample.start_ns != sample.size_bytes + 1 || sample.end_ns != sample.size_bytes + 2) torn++;
    if (sample.size_bytes < next[sample.peer]) disordered++;
    next[sample.peer] = sample.size_bytes + 1;
  }
  for (int i = 0; i < PRODUCERS; i++) pthread_join(producers[i], NULL);
  printf("taken %" PRIu64 " drops %" PRIu64 " torn %d disordered %d\n", taken, ring.drops, torn, disordered);
  return taken + ring.drops != PRODUCERS * EACH || torn || disordered || !taken;
}
