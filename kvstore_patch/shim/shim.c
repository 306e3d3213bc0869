/* The library that is preloaded into an MXNet process: it sends forecasts before data messages and times messages.
 *
 * A ps-lite message is [meta][data]...: the sender's DEALER sends it, the receiver's ROUTER puts the sender's identity,
 * "ps<id>", in front. Before the first frame of a message with data the shim sends a one-frame message on the same socket, the
 * forecast. Both take the same connection in order, so at the receiver the time between them is the time that the
 * message took on the link. libzmq hands over whole messages only, so the message has arrived when its identity frame comes.
 *
 * A forecast is dropped as a whole, identity and body. So on receipt the shim reads the first body frame before it gives the
 * identity to ps-lite, and holds that frame in the socket's entry. State is kept per socket, found by its address. libzmq's
 * sockets are used by one thread at a time, so only finding, adding and removing entries needs atomics.
 *
 * In a job that `nalb launch` starts, routing ids carry the job's name, and messages of other jobs are dropped (job.h).
 *
 * Where NALB_KEYS is set, bound and connecting sockets are encrypted first (curve.h).
 *
 * The process keeps the memory that it frees for the next messages (keep_freed_memory).
 *
 * The shim acts on ps-lite's calls only (callers.h). ps-lite receives with zmq_msg_recv alone, so zmq_recv and zmq_poll are
 * not intercepted.
 */
#define _GNU_SOURCE
#include "shim.h"

#include <malloc.h>
#include <time.h>

#include "callers.h"
#include "curve.h"
#include "job.h"
#include "ring.h"

#define EXPORTED __attribute__((visibility("default")))
#define COUNT(name, more) atomic_fetch_add_explicit(&count_##name, (more), memory_order_relaxed)

enum {
  SOCKETS = 4096,  /* tracked at once; ps-lite has one per peer and one to receive: enough for 2,000 nodes */
  RECEIVERS = 8,   /* receiving sockets whose peers are timed; ps-lite has one */
  PEERS = 4096,    /* ps-lite ids that can be timed: node ranks up to 2,043 */
  MAGIC_SIZE = 6,  /* the forecast without its version */
  FORECAST_MAX = 32 /* a later version may carry more than this one, but stays shorter than ps-lite's shortest meta */
};
enum { MMAP_FROM = 32 << 20, KEPT = 1 << 30 }; /* bytes; glibc takes no larger MMAP_FROM */
static const char FORECAST[8] = "NALBFC01"; /* magic, then two digits: the version */

struct tracked {
  _Atomic(void *) socket; /* NULL: the entry was never used; REMOVED: it is free again */
  int type;
  /* sending */
  bool has_id;     /* ps-lite has given it an id */
  bool in_message; /* frames of a message went out, but not its last one */
  bool announced;  /* from the first try of a message's first frame to its end: no retry and no later frame announces again */
  unsigned frames;
  uint64_t size_bytes;
  /* receiving */
  enum { BETWEEN, HOLDS_IDENTITY, HOLDS_BODY, IN_BODY, IN_FOREIGN } state;
  zmq_msg_t held;
  int peer;
  uint64_t arrival_ns;
  uint64_t start_ns;
  _Atomic uint64_t *forecast_ns; /* by peer id; NULL: not timed */
};

static struct tracked sockets[SOCKETS];
static char removed_marker;
#define REMOVED ((void *)&removed_marker)

static _Atomic uint64_t forecast_times[RECEIVERS][PEERS];
static _Atomic bool receiver_used[RECEIVERS];
static struct ring samples;
static _Atomic uint64_t first_sent_ns;
static _Atomic int self_id = -1;
static _Atomic int forecasts_on = -1; /* -1: as the environment says */
static _Atomic(const char *) transport;
#define NALB_COUNTER(name) static _Atomic uint64_t count_##name;
NALB_COUNTERS(NALB_COUNTER)

static uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* "ps<id>" to the id; -1 for anything else and for ids beyond the table. */
static int peer_id(const char *identity, size_t size) {
  int id = 0;
  if (size < 3 || identity[0] != 'p' || identity[1] != 's') return -1;
  for (size_t i = 2; i < size; i++) {
    if (identity[i] < '0' || identity[i] > '9') return -1;
    id = id * 10 + (identity[i] - '0');
    if (id >= PEERS) return -1;
  }
  return id;
}

/* ---- tracked sockets ---- */

static size_t home_of(const void *socket) {
  return (size_t)(((uintptr_t)socket >> 4) * 0x9E3779B97F4A7C15u >> 40) % SOCKETS;
}

static struct tracked *find(const void *socket) {
  size_t at = home_of(socket);
  for (size_t i = 0; i < SOCKETS; i++, at = (at + 1) % SOCKETS) {
    void *seen = atomic_load_explicit(&sockets[at].socket, memory_order_acquire);
    if (seen == socket) return &sockets[at];
    if (!seen) return NULL;
  }
  return NULL;
}

static void forget(struct tracked *entry) {
  if (entry->forecast_ns) {
    size_t receiver = (size_t)(entry->forecast_ns - forecast_times[0]) / PEERS;
    atomic_store_explicit(&receiver_used[receiver], false, memory_order_release);
  }
  atomic_store_explicit(&entry->socket, REMOVED, memory_order_release);
}

static _Atomic uint64_t *claim_receiver(void) {
  for (int i = 0; i < RECEIVERS; i++) {
    bool used = false;
    if (!atomic_compare_exchange_strong(&receiver_used[i], &used, true)) continue;
    for (int peer = 0; peer < PEERS; peer++) atomic_store_explicit(&forecast_times[i][peer], 0, memory_order_relaxed);
    return forecast_times[i];
  }
  return NULL;
}

static void track(void *socket, int type) {
  struct tracked *stale = find(socket);
  if (stale) forget(stale);
  size_t at = home_of(socket);
  for (size_t i = 0; i < SOCKETS; i++, at = (at + 1) % SOCKETS) {
    struct tracked *entry = &sockets[at];
    void *seen = atomic_load_explicit(&entry->socket, memory_order_relaxed);
    if ((seen && seen != REMOVED) || !atomic_compare_exchange_strong(&entry->socket, &seen, socket)) continue;
    entry->type = type;
    entry->has_id = entry->in_message = entry->announced = false;
    entry->state = BETWEEN;
    entry->forecast_ns = type == ZMQ_ROUTER ? claim_receiver() : NULL;
    return;
  }
  COUNT(untracked_sockets, 1);
}

/* Turns on TCP's keep-alive: firewalls and NATs forget connections that are silent for minutes, as during a long validation. */
static void keep_alive(const struct zmq *zmq, void *socket) {
  static const int options[][2] = {{ZMQ_TCP_KEEPALIVE, 1}, {ZMQ_TCP_KEEPALIVE_IDLE, 60}, {ZMQ_TCP_KEEPALIVE_INTVL, 10},
                                   {ZMQ_TCP_KEEPALIVE_CNT, 6}}; /* seconds; the last is a number of probes */
  for (size_t i = 0; i < sizeof options / sizeof *options; i++)
    zmq->zmq_setsockopt(socket, options[i][0], &options[i][1], sizeof(int));
}

/* Lets glibc keep freed memory, unless glibc's own variables are set. Every received message is allocated and freed. By default
 * glibc soon gives that memory back to the kernel, and the next message faults it in again page by page: a fifth of the CPU
 * time of an exchange over loopback. */
static void keep_freed_memory(void) {
  static const char *const variables[] = {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"};
  for (size_t i = 0; i < sizeof variables / sizeof *variables; i++)
    if (getenv(variables[i])) return;
  mallopt(M_MMAP_THRESHOLD, MMAP_FROM);
  mallopt(M_TRIM_THRESHOLD, KEPT);
}

static void *on_zmq_socket(const struct zmq *zmq, void *context, int type) {
  if (type == ZMQ_ROUTER) keep_freed_memory(); /* ps-lite has one, which it opens first */
  if (type == ZMQ_ROUTER && are_keys_wanted() && start_guard(zmq, context)) return NULL;
  void *socket = zmq->zmq_socket(context, type);
  if (socket && (type == ZMQ_DEALER || type == ZMQ_ROUTER)) {
    keep_alive(zmq, socket);
    track(socket, type);
  }
  if (!atomic_load_explicit(&transport, memory_order_relaxed)) {
    Dl_info library;
    void *function = (void *)zmq->zmq_msg_send;
    if (dladdr(function, &library) && library.dli_fname) atomic_store(&transport, library.dli_fname);
  }
  return socket;
}

static int on_zmq_close(const struct zmq *zmq, void *socket) {
  struct tracked *entry = find(socket);
  if (entry) {
    if (entry->state == HOLDS_IDENTITY || entry->state == HOLDS_BODY) zmq->zmq_msg_close(&entry->held);
    forget(entry);
  }
  return zmq->zmq_close(socket);
}

static int on_zmq_bind(const struct zmq *zmq, void *socket, const char *endpoint) {
  if (are_keys_wanted() && secure_server(zmq, socket, endpoint)) return -1;
  return zmq->zmq_bind(socket, endpoint);
}

static int on_zmq_connect(const struct zmq *zmq, void *socket, const char *endpoint) {
  const struct tracked *entry = is_job_named() ? find(socket) : NULL;
  if (entry && entry->type == ZMQ_DEALER && !entry->has_id && set_named_id(zmq, socket, "", 0)) return -1;
  if (are_keys_wanted() && secure_client(zmq, socket, endpoint)) return -1;
  return zmq->zmq_connect(socket, endpoint);
}

static int on_zmq_setsockopt(const struct zmq *zmq, void *socket, int option, const void *value, size_t size) {
  if (option != ZMQ_ROUTING_ID) return zmq->zmq_setsockopt(socket, option, value, size);
  struct tracked *entry = find(socket);
  int result = is_job_named() ? set_named_id(zmq, socket, value, size) : zmq->zmq_setsockopt(socket, option, value, size);
  if (result) return result;
  if (entry) entry->has_id = true;
  int id = peer_id(value, size);
  if (id >= 0) atomic_store_explicit(&self_id, id, memory_order_relaxed);
  return 0;
}

/* ---- sending ---- */

static bool forecasts_wanted(void) {
  int on = atomic_load_explicit(&forecasts_on, memory_order_relaxed);
  if (on < 0) {
    const char *said = getenv("NALB_SHIM_FORECASTS");
    int first = !(said && strcmp(said, "0") == 0);
    if (atomic_compare_exchange_strong(&forecasts_on, &on, first)) on = first; /* else `on` is the value that was set meanwhile */
  }
  return on;
}

/* Sends a forecast. It waits where the message itself would wait. The message goes out next, whatever happens here. */
static void send_forecast(const struct zmq *zmq, void *socket, int flags) {
  int sent;
  do sent = zmq->zmq_send(socket, FORECAST, sizeof FORECAST, flags & ZMQ_DONTWAIT);
  while (sent < 0 && errno == EINTR);
  if (sent < 0)
    COUNT(forecast_failures, 1);
  else
    COUNT(forecasts_sent, 1);
}

static int on_zmq_msg_send(const struct zmq *zmq, zmq_msg_t *msg, void *socket, int flags) {
  struct tracked *entry = find(socket);
  if (!entry || entry->type != ZMQ_DEALER) return zmq->zmq_msg_send(msg, socket, flags);
  bool more = flags & ZMQ_SNDMORE;
  if (more && !entry->announced) {
    entry->announced = true;
    uint64_t none = 0; /* set before sending: once the message is out, its answer may come and first_sent_ns may be read */
    if (!atomic_load_explicit(&first_sent_ns, memory_order_relaxed)) atomic_compare_exchange_strong(&first_sent_ns, &none, now_ns());
    if (forecasts_wanted()) send_forecast(zmq, socket, flags);
  }
  size_t size = zmq->zmq_msg_size(msg); /* read first: sending empties the message */
  int sent = zmq->zmq_msg_send(msg, socket, flags);
  if (sent < 0) return sent;
  if (!entry->in_message) entry->frames = 0, entry->size_bytes = 0;
  entry->frames++;
  entry->size_bytes += size;
  entry->in_message = more;
  if (!more) {
    entry->announced = false;
    if (entry->frames > 1) {
      COUNT(messages_sent, 1);
      COUNT(bytes_sent, entry->size_bytes);
    }
  }
  return sent;
}

/* ---- receiving ---- */

enum body { ORDINARY, SWALLOW, SWALLOW_OTHER_VERSION, HOSTILE };

static enum body judge_body(const struct zmq *zmq, zmq_msg_t *msg) {
  size_t size = zmq->zmq_msg_size(msg);
  bool lone = !zmq->zmq_msg_more(msg);
  if (size == 0) return HOSTILE;
  if (size > FORECAST_MAX) return ORDINARY;
  const char *data = zmq->zmq_msg_data(msg);
  if (size < sizeof FORECAST) return memcmp(data, FORECAST, size) == 0 ? HOSTILE : ORDINARY;
  if (memcmp(data, FORECAST, MAGIC_SIZE) != 0) return ORDINARY;
  if (!lone) return HOSTILE;
  return size == sizeof FORECAST && memcmp(data, FORECAST, size) == 0 ? SWALLOW : SWALLOW_OTHER_VERSION;
}

static void note_identity(const struct zmq *zmq, struct tracked *entry, zmq_msg_t *msg) {
  const char *identity = zmq->zmq_msg_data(msg);
  size_t size = zmq->zmq_msg_size(msg);
  bool nameless = is_job_named() ? size == 0 : size == 5 && identity[0] == 0; /* before ps-lite has an id; 5: made by libzmq */
  entry->arrival_ns = now_ns();
  entry->peer = peer_id(identity, size);
  if (entry->peer < 0 && !nameless) COUNT(hostile_frames, 1);
}

static _Atomic uint64_t *forecast_of(struct tracked *entry) {
  return entry->forecast_ns && entry->peer >= 0 ? &entry->forecast_ns[entry->peer] : NULL;
}

/* Drops the held first frame of the body if it is a forecast, and notes the forecast's time. Returns whether it did; the caller
 * then drops the identity too. */
static bool swallow(const struct zmq *zmq, struct tracked *entry) {
  enum body body = judge_body(zmq, &entry->held);
  _Atomic uint64_t *forecast = forecast_of(entry);
  if (body == HOSTILE || body == SWALLOW_OTHER_VERSION) COUNT(hostile_frames, 1);
  if (body == SWALLOW || body == SWALLOW_OTHER_VERSION) {
    if (body == SWALLOW && forecast) atomic_store_explicit(forecast, entry->arrival_ns, memory_order_relaxed);
    if (body == SWALLOW) COUNT(forecasts_swallowed, 1);
    zmq->zmq_msg_close(&entry->held);
    return true;
  }
  /* Any message uses up its peer's forecast: one whose message was not sent must not time the next message. */
  entry->start_ns = forecast ? atomic_exchange_explicit(forecast, 0, memory_order_relaxed) : 0;
  return false;
}

/* The identity that ps-lite was given last, where it is a new message: libzmq does not know that its body follows. */
static _Thread_local const zmq_msg_t *renamed;

/* Takes the job's name out of an identity. Returns its size then, FOREIGN where the message is another job's. */
static int take_name(const struct zmq *zmq, zmq_msg_t *msg) {
  int size = own_id_size(zmq->zmq_msg_data(msg), zmq->zmq_msg_size(msg));
  zmq_msg_t id;
  if (size == FOREIGN || zmq->zmq_msg_init_size(&id, (size_t)size)) return FOREIGN; /* no memory: this message is lost */
  if (size) memcpy(zmq->zmq_msg_data(&id), zmq->zmq_msg_data(msg), (size_t)size);
  zmq->zmq_msg_move(msg, &id);
  return size;
}

/* Reads identities and bodies until there is a message for ps-lite; its identity is then in `msg`, its body is held. */
static int receive_identity(const struct zmq *zmq, struct tracked *entry, zmq_msg_t *msg, void *socket, int flags) {
  for (;;) {
    while (entry->state == IN_FOREIGN) {
      if (zmq->zmq_msg_recv(msg, socket, flags) < 0) return -1;
      if (!zmq->zmq_msg_more(msg)) entry->state = BETWEEN;
    }
    if (entry->state == HOLDS_IDENTITY) {
      zmq->zmq_msg_move(msg, &entry->held);
      entry->state = BETWEEN;
    } else {
      int got = zmq->zmq_msg_recv(msg, socket, flags);
      if (got < 0) return got;
      bool more = zmq->zmq_msg_more(msg);
      if (is_job_named() && take_name(zmq, msg) == FOREIGN) {
        COUNT(foreign_messages, 1);
        if (more) entry->state = IN_FOREIGN;
        continue;
      }
      note_identity(zmq, entry, msg);
      if (!more) { /* nothing follows: not a message of ps-lite */
        COUNT(hostile_frames, 1);
        return (int)zmq->zmq_msg_size(msg);
      }
    }
    zmq->zmq_msg_init(&entry->held);
    if (zmq->zmq_msg_recv(&entry->held, socket, flags) < 0) { /* interrupted: the next call goes on from here */
      int saved = errno;
      zmq->zmq_msg_move(&entry->held, msg);
      entry->state = HOLDS_IDENTITY;
      errno = saved;
      return -1;
    }
    if (swallow(zmq, entry)) continue;
    entry->state = HOLDS_BODY;
    renamed = is_job_named() ? msg : NULL;
    return (int)zmq->zmq_msg_size(msg);
  }
}

static void note_received(struct tracked *entry) {
  struct nalb_sample sample = {entry->peer, entry->size_bytes, entry->start_ns, entry->arrival_ns};
  COUNT(messages_received, 1);
  COUNT(bytes_received, entry->size_bytes);
  if (entry->start_ns) ring_add(&samples, &sample);
}

static int on_zmq_msg_recv(const struct zmq *zmq, zmq_msg_t *msg, void *socket, int flags) {
  struct tracked *entry = find(socket);
  renamed = NULL;
  if (!entry || entry->type != ZMQ_ROUTER) return zmq->zmq_msg_recv(msg, socket, flags);
  if (entry->state != HOLDS_BODY && entry->state != IN_BODY) return receive_identity(zmq, entry, msg, socket, flags);
  if (entry->state == HOLDS_BODY) {
    zmq->zmq_msg_move(msg, &entry->held);
    entry->frames = 0;
    entry->size_bytes = 0;
    entry->state = IN_BODY;
  } else {
    int got = zmq->zmq_msg_recv(msg, socket, flags);
    if (got < 0) return got;
  }
  size_t size = zmq->zmq_msg_size(msg);
  entry->frames++;
  entry->size_bytes += size;
  if (!zmq->zmq_msg_more(msg)) {
    entry->state = BETWEEN;
    if (entry->frames > 1) note_received(entry);
  }
  return (int)size;
}

static int on_zmq_msg_more(const struct zmq *zmq, const zmq_msg_t *msg) { return msg == renamed ? 1 : zmq->zmq_msg_more(msg); }

/* ---- the exported functions ---- */

#define NALB_WRAPPER(result, failure, name, parameters, arguments)                \
  EXPORTED result name parameters;                                                \
  EXPORTED result name parameters {                                               \
    const struct caller *caller = caller_at(__builtin_return_address(0));         \
    if (caller->acts) return on_##name(&caller->zmq, NALB_UNPACK arguments);      \
    if (caller->zmq.name) return caller->zmq.name arguments;                      \
    errno = ENOSYS;                                                               \
    return failure;                                                               \
  }
NALB_HOOKS(NALB_WRAPPER)

EXPORTED int nalb_shim_abi(void) { return NALB_SHIM_ABI; }

EXPORTED int nalb_shim_in_front(void) { /* compares objects: the shim's own name zmq_msg_send is bound to the library in front */
  Dl_info first, own;
  void *found = dlsym(RTLD_DEFAULT, "zmq_msg_send");
  return found && dladdr(found, &first) && dladdr(&samples, &own) && first.dli_fbase == own.dli_fbase;
}

EXPORTED const char *nalb_shim_transport(void) {
  const char *path = atomic_load(&transport);
  return path ? path : "";
}

EXPORTED int nalb_shim_drain(struct nalb_sample *out, int limit) {
  int taken = 0;
  while (taken < limit && ring_take(&samples, &out[taken])) taken++;
  return taken;
}

EXPORTED uint64_t nalb_shim_drops(void) { return atomic_load(&samples.drops); }

EXPORTED void nalb_shim_mark(void) { atomic_store(&first_sent_ns, 0); }

EXPORTED uint64_t nalb_shim_first_sent_ns(void) { return atomic_load(&first_sent_ns); }

EXPORTED int nalb_shim_self_id(void) { return atomic_load(&self_id); }

EXPORTED void nalb_shim_set_forecasts(int on) { atomic_store(&forecasts_on, on != 0); }

EXPORTED void nalb_shim_counters(struct nalb_counters *out) {
#define NALB_READ_COUNTER(name) out->name = atomic_load_explicit(&count_##name, memory_order_relaxed);
  NALB_COUNTERS(NALB_READ_COUNTER)
#undef NALB_READ_COUNTER
}
