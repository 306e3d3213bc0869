/* launcher OBJECT SCENARIO: loads OBJECT as ctypes loads libmxnet.so (RTLD_LOCAL), runs its scenario, prints what the shim saw. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "shim.h"

static void *must_find(void *handle, const char *name) {
  void *found = dlsym(handle, name);
  if (!found) fprintf(stderr, "%s\n", dlerror()), exit(2);
  return found;
}

int main(int count, char **arguments) {
  if (count != 3) return 2;
  void *object = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
  if (!object) return fprintf(stderr, "%s\n", dlerror()), 2;
  void *self = dlopen(NULL, RTLD_NOW);
  int (*run)(const char *) = (int (*)(const char *))must_find(object, "run");
  int (*drain)(struct nalb_sample *, int) = (int (*)(struct nalb_sample *, int))must_find(self, "nalb_shim_drain");
  int (*self_id)(void) = (int (*)(void))must_find(self, "nalb_shim_self_id");
  uint64_t (*drops)(void) = (uint64_t(*)(void))must_find(self, "nalb_shim_drops");
  const char *(*transport)(void) = (const char *(*)(void))must_find(self, "nalb_shim_transport");
  void (*read_counters)(struct nalb_counters *) = (void (*)(struct nalb_counters *))must_find(self, "nalb_shim_counters");

  int result = run(arguments[2]);
  struct nalb_counters counters;
  read_counters(&counters);
#define PRINT(name) printf("counter %s %" PRIu64 "\n", #name, counters.name);
  NALB_COUNTERS(PRINT)
  printf("counter drops %" PRIu64 "\n", drops());
  printf("self %d\ntransport %s\n", self_id(), transport());
  struct nalb_sample sample;
  while (drain(&sample, 1))
    printf("sample %" PRId32 " %" PRIu64 " %" PRIu64 " %" PRIu64 "\n", sample.peer, sample.size_bytes, sample.start_ns, sample.end_ns);
  return result;
}
