/* Stands in for libmxnet.so on a real libzmq: sends and receives as ps-lite's ZMQVan does. Received messages are printed. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "zmq_calls.h"

enum { META = 40, DATA = 100000 };
static char filling[DATA];

#define MUST(condition) \
  do                    \
    if (!(condition)) fprintf(stderr, "line %d: %s, errno %d\n", __LINE__, #condition, errno), exit(1); \
  while (0)

/* Closed sockets are reaped on another thread, which may lag: the context's slots for sockets may all be taken till then. */
static void *opened(void *context, int type) {
  void *socket;
  do socket = zmq_socket(context, type);
  while (!socket && errno == EMFILE);
  return socket;
}

static void *router(void *context, char *address, size_t size) {
  void *socket = opened(context, ZMQ_ROUTER);
  MUST(socket && zmq_bind(socket, "tcp://127.0.0.1:*") == 0);
  MUST(zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, address, &size) == 0);
  return socket;
}

static void *dealer_named(void *context, const char *address, const void *identity, size_t size) {
  void *socket = opened(context, ZMQ_DEALER);
  MUST(socket);
  if (size) MUST(zmq_setsockopt(socket, ZMQ_ROUTING_ID, identity, size) == 0);
  MUST(zmq_connect(socket, address) == 0);
  return socket;
}

static void *dealer(void *context, const char *address, int id) {
  char identity[16];
  int size = snprintf(identity, sizeof identity, "ps%d", id);
  return dealer_named(context, address, identity, (size_t)size);
}

static void close_now(void *socket) {
  int linger = 0;
  zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof linger);
  MUST(zmq_close(socket) == 0);
}

static void send_frame(void *socket, const void *data, size_t size, int flags) {
  zmq_msg_t msg;
  MUST(zmq_msg_init_size(&msg, size) == 0);
  if (size) memcpy(zmq_msg_data(&msg), data, size);
  MUST(zmq_msg_send(&msg, socket, flags) == (int)size);
}

/* A meta frame and `frames` data frames of `size` bytes. */
static void send_message(void *socket, int frames, size_t size) {
  send_frame(socket, filling, META, frames ? ZMQ_SNDMORE : 0);
  for (int i = 1; i <= frames; i++) send_frame(socket, filling, size, i < frames ? ZMQ_SNDMORE : 0);
}

/* One frame as ps-lite receives it; prints its first bytes. Returns whether more follow. */
static int receive_frame(void *socket, int printed) {
  zmq_msg_t msg;
  zmq_msg_init(&msg);
  int size = zmq_msg_recv(&msg, socket, 0);
  MUST(size >= 0 && (size_t)size == zmq_msg_size(&msg));
  const char *data = zmq_msg_data(&msg);
  if (printed) {
    printf(" %d:", size);
    for (int i = 0; i < size && i < 12; i++) putchar(data[i] > 32 && data[i] < 127 ? data[i] : '.');
  }
  int more = zmq_msg_more(&msg);
  zmq_msg_close(&msg);
  return more;
}

static void receive_message(void *socket, int printed) {
  if (printed) printf("message");
  while (receive_frame(socket, printed)) continue;
  if (printed) puts("");
}

static void exchange(void *context) {
  char address[64];
  void *receiver = router(context, address, sizeof address), *senders[3];
  for (int i = 0; i < 3; i++) senders[i] = dealer(context, address, 9 + 2 * i);
  for (int round = 0; round < 5; round++)
    for (int i = 0; i < 3; i++) {
      send_message(senders[i], 0, 0);
      receive_message(receiver, 1);
      send_message(senders[i], 2, DATA);
      receive_message(receiver, 1);
    }
  for (int i = 0; i < 3; i++) close_now(senders[i]);
  close_now(receiver);
}

static void many_peers(void *context) {
  enum { COUNT = 200 };
  char address[64];
  void *receiver = router(context, address, sizeof address), *senders[COUNT];
  for (int i = 0; i < COUNT; i++) senders[i] = dealer(context, address, 8 + i);
  for (int i = 0; i < COUNT; i++) send_message(senders[i], 1, 1000 + (size_t)i);
  for (int i = 0; i < COUNT; i++) receive_message(receiver, 0);
  for (int i = 0; i < COUNT; i++) close_now(senders[i]);
  close_now(receiver);
}

static void overflow(void *context) {
  char address[64];
  void *receiver = router(context, address, sizeof address), *sender = dealer(context, address, 9);
  for (int i = 0; i < 70000; i++) {
    send_message(sender, 1, 8);
    receive_message(receiver, 0);
  }
  close_now(sender);
  close_now(receiver);
}

/* All from one socket, which no shim announces for; after each the receiver must still understand a plain message. */
static void hostile(void *context) {
  char address[64], longest[255];
  void *receiver = router(context, address, sizeof address), *sender = dealer(context, address, 9);
  send_frame(sender, "NALB", 4, 0);                /* truncated */
  send_frame(sender, "NALBFC0", 7, 0);             /* truncated */
  send_frame(sender, "", 0, 0);                    /* nothing */
  send_frame(sender, "NALBFC99", 8, 0);            /* another version: swallowed */
  send_frame(sender, "NALBFC02 and more", 17, 0);  /* another version: swallowed */
  send_frame(sender, "NALBFC01", 8, ZMQ_SNDMORE);  /* with an extra frame */
  send_frame(sender, "extra", 5, 0);
  send_frame(sender, "", 0, ZMQ_SNDMORE);          /* nothing, then data */
  send_frame(sender, "", 0, 0);
  send_frame(sender, "NALBFC01", 8, 0);            /* announces a message ... */
  send_message(sender, 0, 0);                      /* ... but one without data comes, which uses it up */
  send_message(sender, 1, 10);
  for (int i = 0; i < 7; i++) receive_message(receiver, 1);
  close_now(sender);

  memset(longest, 'p', sizeof longest);
  const struct {
    const char *name;
    size_t size;
  } identities[] = {{"pz9", 3}, {"ps", 2}, {"ps99999999999999999999", 22}, {"ps4096", 6}, {"ps-1", 4}, {longest, sizeof longest}};
  for (size_t i = 0; i < sizeof identities / sizeof *identities; i++) {
    sender = dealer_named(context, address, identities[i].name, identities[i].size);
    send_frame(sender, "NALBFC01", 8, 0);
    send_message(sender, 1, 20 + i);
    receive_message(receiver, 1);
    close_now(sender);
  }
  sender = dealer_named(context, address, NULL, 0); /* as ps-lite registers: libzmq names it, which is nothing hostile */
  send_message(sender, 0, 0);
  receive_message(receiver, 0);
  close_now(sender);
  close_now(receiver);
}

static char shared_address[64];

static void *send_many(void *context) {
  static _Atomic int next_id = 9;
  void *sender = dealer(context, shared_address, next_id++);
  for (int i = 0; i < 500; i++) send_message(sender, 1, 64);
  MUST(zmq_close(sender) == 0); /* lingers until all are delivered */
  return NULL;
}

static void threads(void *context) {
  enum { COUNT = 8 };
  pthread_t running[COUNT];
  void *receiver = router(context, shared_address, sizeof shared_address);
  for (int i = 0; i < COUNT; i++) MUST(pthread_create(&running[i], NULL, send_many, context) == 0);
  for (int i = 0; i < COUNT * 500; i++) receive_message(receiver, 0);
  for (int i = 0; i < COUNT; i++) pthread_join(running[i], NULL);
  close_now(receiver);
}

/* One thread, two receivers, frame by frame in turn; two senders likewise. */
static void interleaved(void *context) {
  char address[2][64];
  void *receivers[2], *senders[2];
  for (int i = 0; i < 2; i++) {
    receivers[i] = router(context, address[i], sizeof address[i]);
    senders[i] = dealer(context, address[i], 9 + 2 * i);
  }
  for (int round = 0; round < 3; round++) {
    for (int frame = 0; frame < 3; frame++)
      for (int i = 0; i < 2; i++) send_frame(senders[i], filling, 50 + 10 * (size_t)i, frame < 2 ? ZMQ_SNDMORE : 0);
    for (int frame = 0; frame < 4; frame++)
      for (int i = 0; i < 2; i++) MUST(receive_frame(receivers[i], 0) == (frame < 3));
  }
  for (int i = 0; i < 2; i++) close_now(senders[i]), close_now(receivers[i]);
}

/* More sockets, one after another, than the table holds; each receiver is closed between the identity and the body. */
static void churn(void *context) {
  for (int i = 0; i < 5000; i++) {
    void *socket = opened(context, i % 2 ? ZMQ_DEALER : ZMQ_ROUTER);
    MUST(socket && zmq_close(socket) == 0);
  }
  for (int i = 0; i < 20; i++) {
    char address[64];
    void *receiver = router(context, address, sizeof address), *sender = dealer(context, address, 9);
    send_message(sender, 1, DATA);
    MUST(receive_frame(receiver, 0));
    close_now(sender);
    close_now(receiver);
  }
}

static void *shut_down(void *context) {
  MUST(zmq_ctx_shutdown(context) == 0);
  return NULL;
}

/* Nothing there, then a context that ends while a receiver waits. */
static void ends(void *context) {
  char address[64];
  void *receiver = router(context, address, sizeof address), *sender = dealer(context, address, 9);
  zmq_msg_t msg;
  zmq_msg_init(&msg);
  MUST(zmq_msg_recv(&msg, receiver, ZMQ_DONTWAIT) == -1 && errno == EAGAIN);
  pthread_t other;
  MUST(pthread_create(&other, NULL, shut_down, context) == 0);
  int received = zmq_msg_recv(&msg, receiver, 0);
  printf("receive %d %s\n", received, errno == 156384765 ? "ETERM" : strerror(errno));
  pthread_join(other, NULL);
  zmq_msg_init_size(&msg, META);
  int sent = zmq_msg_send(&msg, sender, ZMQ_SNDMORE);
  printf("send %d %s\n", sent, errno == 156384765 ? "ETERM" : strerror(errno));
  zmq_msg_close(&msg);
  close_now(sender);
  close_now(receiver);
}

/* A bound socket that is no ROUTER, for which no ZAP handler is started: one is there only if a ROUTER was made before. */
static void knock(void *context, int with_guard) {
  int must_open = with_guard || !getenv("NALB_KEYS"); /* a busy machine takes long for it; a refusal is waited for in vain */
  int limit_ms = must_open ? 20000 : 3000;
  char address[64];
  size_t size = sizeof address;
  void *other = with_guard ? zmq_socket(context, ZMQ_ROUTER) : NULL;
  void *receiver = zmq_socket(context, ZMQ_PULL), *sender = zmq_socket(context, ZMQ_PUSH);
  MUST(receiver && sender && zmq_bind(receiver, "tcp://127.0.0.1:*") == 0);
  MUST(zmq_getsockopt(receiver, ZMQ_LAST_ENDPOINT, address, &size) == 0 && zmq_connect(sender, address) == 0);
  MUST(zmq_setsockopt(receiver, ZMQ_RCVTIMEO, &limit_ms, sizeof limit_ms) == 0);
  send_frame(sender, "knock", 5, 0);
  zmq_msg_t msg;
  zmq_msg_init(&msg);
  puts(zmq_msg_recv(&msg, receiver, 0) == 5 ? "opened" : errno == EAGAIN ? "refused" : "failed");
  zmq_msg_close(&msg);
  close_now(sender);
  close_now(receiver);
  if (other) close_now(other);
}

static void guarded(void *context) { knock(context, 1); }
static void unguarded(void *context) { knock(context, 0); }

/* One of another job comes first, with an id of ours; then ours, before it has an id and with it. */
static void foreign(void *context) {
  char address[64];
  void *receiver = router(context, address, sizeof address);
  void *other = dealer_named(context, address, "ps9@other", 9), *nameless = dealer_named(context, address, NULL, 0);
  send_message(other, 0, 0);
  send_message(other, 2, DATA);
  send_message(nameless, 0, 0);
  receive_message(receiver, 1);
  void *ours = dealer(context, address, 9);
  for (int i = 0; i < 2; i++) {
    send_message(other, 1, DATA);
    send_message(ours, 1, DATA);
    receive_message(receiver, 1);
  }
  close_now(other);
  close_now(nameless);
  close_now(ours);
  close_now(receiver);
}

/* Where keys are used: what is no peer's address and what is no TCP cannot be had. */
static void elsewhere(void *context) {
  void *router = zmq_socket(context, ZMQ_ROUTER), *dealer = zmq_socket(context, ZMQ_DEALER);
  printf("connect %s\n", zmq_connect(dealer, "tcp://127.0.0.77:9") == 0 ? "made" : strerror(errno));
  printf("bind %s\n", zmq_bind(router, "inproc://here") == 0 ? "made" : strerror(errno));
  close_now(router);
  close_now(dealer);
}

static int kernel_option(int descriptor, int level, int option) {
  int value = -1;
  socklen_t size = sizeof value;
  return getsockopt(descriptor, level, option, &value, &size) == 0 ? value : -1;
}

/* What the kernel knows of every socket of TCP here, the two ends of a connection. */
static void kept_alive(void *context) {
  char address[64];
  void *receiver = router(context, address, sizeof address), *sender = dealer(context, address, 9);
  send_message(sender, 1, 100);
  receive_message(receiver, 0);
  for (int i = 3; i < 256; i++)
    if (kernel_option(i, SOL_SOCKET, SO_PROTOCOL) == IPPROTO_TCP && !kernel_option(i, SOL_SOCKET, SO_ACCEPTCONN))
      printf("alive %d %d %d %d\n", kernel_option(i, SOL_SOCKET, SO_KEEPALIVE), kernel_option(i, IPPROTO_TCP, TCP_KEEPIDLE),
             kernel_option(i, IPPROTO_TCP, TCP_KEEPINTVL), kernel_option(i, IPPROTO_TCP, TCP_KEEPCNT));
  close_now(sender);
  close_now(receiver);
}

/* Memory as messages take it, freed and taken again: how many pages the kernel has to bring for the last of ten times. */
static void kept_memory(void *context) {
  enum { PIECES = 8, PIECE = 4 << 20 };
  char address[64], *pieces[PIECES];
  struct rusage before, after;
  void *receiver = router(context, address, sizeof address);
  for (int turn = 0; turn < 10; turn++) {
    getrusage(RUSAGE_SELF, &before);
    for (int i = 0; i < PIECES; i++) MUST((pieces[i] = malloc(PIECE)) && memset(pieces[i], turn, PIECE));
    for (int i = 0; i < PIECES; i++) free(pieces[i]);
    getrusage(RUSAGE_SELF, &after);
  }
  printf("brought %s\n", after.ru_minflt - before.ru_minflt < 100 ? "few" : "many");
  close_now(receiver);
}

int run(const char *scenario) {
  static const struct {
    const char *name;
    void (*run)(void *);
    int forecasts;
  } scenarios[] = {{"exchange", exchange, 1}, {"silent", exchange, 0},   {"many_peers", many_peers, 1},
                   {"overflow", overflow, 1}, {"hostile", hostile, 0},   {"threads", threads, 1},
                   {"churn", churn, 1},       {"ends", ends, 1},         {"interleaved", interleaved, 1},
                   {"guarded", guarded, 0},   {"unguarded", unguarded, 0}, {"foreign", foreign, 1}, {"elsewhere", elsewhere, 0},
                   {"kept_alive", kept_alive, 1}, {"kept_memory", kept_memory, 1}};
  void (*set_forecasts)(int) = (void (*)(int))dlsym(RTLD_DEFAULT, "nalb_shim_set_forecasts");
  for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++) {
    if (strcmp(scenario, scenarios[i].name) != 0) continue;
    void *context = zmq_ctx_new();
    MUST(set_forecasts && context && zmq_ctx_set(context, ZMQ_MAX_SOCKETS, 4000) == 0);
    set_forecasts(scenarios[i].forecasts);
    scenarios[i].run(context);
    MUST(zmq_ctx_term(context) == 0);
    return 0;
  }
  return 2;
}
