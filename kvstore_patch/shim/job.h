/* Tells this job's processes from those of other jobs, by the job's name in the routing ids of ps-lite's sockets.
 *
 * ps-lite's ids are alike in all jobs ("ps8", "ps9", ...), and its ports are any that are free. So a process of another job that
 * connects anew to a peer that has ended can reach a port that is this job's by now. libzmq would then ignore the connection of
 * this job's own process with that id, and ps-lite would take in the other's messages.
 *
 * A sender's id is "ps9@JOB" on the wire, and that of a sender that has no id yet is "@JOB/" with a random number. The receiver drops
 * what has another job's name, and gives ps-lite the id without it. The name is no secret and keeps no attacker out.
 *
 * Choice not taken: refusing the connection, by libzmq's PLAIN and a ZAP handler. With the libzmq 4.2.2 inside MXNet some connections
 * then carry nothing (docs/faults.md).
 */
#ifndef NALB_JOB_H
#define NALB_JOB_H

#include <pthread.h>
#include <stdio.h>
#include <sys/random.h>

#include "callers.h"

enum { JOB_SIZE = 64, ROUTING_ID_SIZE = 128, FOREIGN = -1 };

static struct {
  char suffix[JOB_SIZE + 1]; /* "@JOB"; empty: the process does not know its job's name */
  size_t size;
} job;

/* Reads the name from NALB_JOB, which is JOB:PROCESS. Where NALB_ADDRESSES is missing or empty, each node has a launcher and a mark of
 * its own (nalb/launch/one_node.py), so the marks name no job. */
static void read_job(void) {
  const char *mark = getenv("NALB_JOB"), *addresses = getenv("NALB_ADDRESSES"), *colon = mark ? strchr(mark, ':') : NULL;
  if (!addresses || !*addresses || !colon || colon == mark || colon - mark >= JOB_SIZE) return;
  job.size = (size_t)snprintf(job.suffix, sizeof job.suffix, "@%.*s", (int)(colon - mark), mark);
}

static bool is_job_named(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, read_job);
  return job.size > 0;
}

/* Sets a sender's routing id: ps-lite's id with the job's name, or one for a sender without an id where `size` is 0. */
static int set_named_id(const struct zmq *zmq, void *socket, const char *id, size_t size) {
  char named[ROUTING_ID_SIZE];
  uint64_t number = 0;
  if (!size && getrandom(&number, sizeof number, 0) != sizeof number) return -1;
  int written = size ? snprintf(named, sizeof named, "%.*s%s", (int)size, id, job.suffix)
                     : snprintf(named, sizeof named, "%s/%016llx", job.suffix, (unsigned long long)number);
  if (written >= ROUTING_ID_SIZE) {
    errno = EINVAL;
    return -1;
  }
  return zmq->zmq_setsockopt(socket, ZMQ_ROUTING_ID, named, (size_t)written);
}

/* The size of ps-lite's id within a sender's routing id: 0 for a sender without an id, FOREIGN for one of another job or of none. */
static int own_id_size(const char *id, size_t size) {
  const char *at = memchr(id, '@', size);
  size_t own = at ? (size_t)(at - id) : size;
  if (size - own < job.size || memcmp(id + own, job.suffix, job.size) != 0) return FOREIGN;
  size_t rest = size - own - job.size;
  return rest == 0 || (own == 0 && id[job.size] == '/') ? (int)own : FOREIGN;
}

#endif
