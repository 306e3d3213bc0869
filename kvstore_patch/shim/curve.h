/* Encrypts ps-lite's sockets with libzmq's CURVE (CurveZMQ, ZeroMQ RFC 26), where NALB_KEYS names a node's key file.
 *
 * The file (nalb/transport/keys.py writes and describes it) holds the node's own key pair, and the address and public key of
 * every node of the job. A socket that is bound becomes a CURVE server with the node's own pair; a socket that connects uses
 * the same pair as client and expects the server key that the file gives for the address. A ZAP handler (RFC 27), a thread
 * in ps-lite's own libzmq context, looks up the key of each peer that shakes hands with a bound socket among the job's keys.
 *
 * All errors close the door: with a file that cannot be used, an address that is not in it or a libzmq without CURVE the call
 * fails, and ps-lite ends. Bound sockets enforce their ZAP domain, so libzmq refuses every peer while no handler answers.
 *
 * Choice not taken: one server key for the whole job. It would need no addresses, which ps-lite learns only at run time, but
 * every node would hold the secret that the others trust, and could stand in for any of them.
 */
#ifndef NALB_CURVE_H
#define NALB_CURVE_H

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "callers.h"

enum {
  KEY_SIZE = 32,
  HEX_SIZE = 2 * KEY_SIZE,
  NODES = 2048,      /* the most nodes whose messages the shim times */
  ADDRESS_SIZE = 64, /* an IPv4 address or a short name */
  LINE_SIZE = 512,
  NAME_SIZE = 128,
  ZAP_ID_SIZE = 64 /* libzmq's own request ids are one byte */
};
#define ZAP_ENDPOINT "inproc://zeromq.zap.01" /* fixed by RFC 27 */
static const char KEYS_TITLE[] = "nalb keys 1\n";
static const char ZAP_DOMAIN[] = "nalb";

struct peer {
  char address[ADDRESS_SIZE];
  unsigned char public_key[KEY_SIZE];
};

static struct {
  enum { PLAIN, ENCRYPTED, UNUSABLE } state;
  const char *path;
  unsigned char public_key[KEY_SIZE], secret_key[KEY_SIZE];
  struct peer peers[NODES];
  unsigned count;
} keys;

static _Atomic uint64_t count_handshakes_allowed, count_handshakes_refused; /* of NALB_COUNTERS */

/* ---- the key file ---- */

static int hex_digit(char digit) {
  if (digit >= '0' && digit <= '9') return digit - '0';
  return digit >= 'a' && digit <= 'f' ? digit - 'a' + 10 : -1;
}

static bool read_key(const char *hex, unsigned char *key) {
  if (strlen(hex) != HEX_SIZE) return false;
  for (int i = 0; i < KEY_SIZE; i++) {
    int high = hex_digit(hex[2 * i]), low = hex_digit(hex[2 * i + 1]);
    if (high < 0 || low < 0) return false;
    key[i] = (unsigned char)(high << 4 | low);
  }
  return true;
}

/* Reads one line: "node NAME PUBLIC SECRET", once in a file, or "peer NAME ADDRESS PUBLIC". False where it is neither. */
static bool read_line(const char *line, bool *has_node) {
  char kind[8], name[NAME_SIZE], third[HEX_SIZE + 1], fourth[HEX_SIZE + 1];
  int end = 0;
  bool right = sscanf(line, "%7s %127s %64s %64s %n", kind, name, third, fourth, &end) == 4 && !line[end];
  if (right && strcmp(kind, "node") == 0) {
    right = !*has_node && read_key(third, keys.public_key) && read_key(fourth, keys.secret_key);
    *has_node = true;
  } else if (right) {
    right = strcmp(kind, "peer") == 0 && keys.count < NODES && strlen(third) < ADDRESS_SIZE &&
            read_key(fourth, keys.peers[keys.count].public_key);
    if (right) strcpy(keys.peers[keys.count++].address, third);
  }
  explicit_bzero(fourth, sizeof fourth);
  return right;
}

/* Reads a key file into `keys`. Returns NULL, or what is wrong with the file. */
static const char *read_keys(FILE *file) {
  struct stat status;
  char line[LINE_SIZE];
  bool has_node = false, right = true;
  if (fstat(fileno(file), &status) != 0 || !S_ISREG(status.st_mode)) return "is not a file";
  if (status.st_uid != geteuid()) return "belongs to another user: chown it";
  if (status.st_mode & 077) return "can be read by others: chmod 600 it";
  if (!fgets(line, sizeof line, file) || strcmp(line, KEYS_TITLE) != 0) return "is no key file of this version: see nalb keys";
  while (right && fgets(line, sizeof line, file)) right = read_line(line, &has_node);
  explicit_bzero(line, sizeof line);
  return right && has_node && keys.count && !ferror(file) ? NULL : "is damaged: make keys anew by nalb keys";
}

static void load_keys(void) {
  keys.path = getenv("NALB_KEYS");
  if (!keys.path) return;
  keys.state = UNUSABLE; /* also where NALB_KEYS is "": nobody asks for plain text in that way */
  int descriptor = open(keys.path, O_RDONLY | O_CLOEXEC);
  FILE *file = descriptor < 0 ? NULL : fdopen(descriptor, "r");
  char buffer[LINE_SIZE];
  if (file) setvbuf(file, buffer, _IOFBF, sizeof buffer); /* a buffer of our own can be wiped */
  const char *complaint = file ? read_keys(file) : "cannot be read";
  if (file) fclose(file);
  explicit_bzero(buffer, sizeof buffer);
  if (complaint)
    dprintf(STDERR_FILENO, "nalb: NALB_KEYS: %s %s\n", keys.path, complaint);
  else
    keys.state = ENCRYPTED;
}

static bool are_keys_wanted(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, load_keys);
  return keys.state != PLAIN;
}

/* The peer with the address of "tcp://ADDRESS:PORT"; NULL where there is none. */
static const struct peer *peer_at(const char *endpoint) {
  const char *address = strncmp(endpoint, "tcp://", 6) == 0 ? endpoint + 6 : NULL, *colon = address ? strrchr(address, ':') : NULL;
  size_t size = colon ? (size_t)(colon - address) : 0;
  for (unsigned i = 0; size && i < keys.count; i++)
    if (strlen(keys.peers[i].address) == size && memcmp(keys.peers[i].address, address, size) == 0) return &keys.peers[i];
  return NULL;
}

/* ---- sockets; functions return 0, or -1 with libzmq's errno ---- */

static int deny(int error) {
  errno = error;
  return -1;
}

static int set(const struct zmq *zmq, void *socket, int option, const void *value, size_t size) {
  return zmq->zmq_setsockopt(socket, option, value, size);
}

static int secure_server(const struct zmq *zmq, void *socket, const char *endpoint) {
  const int on = 1;
  if (keys.state != ENCRYPTED) return deny(EACCES);
  if (strncmp(endpoint, "tcp://", 6) != 0) return deny(EPROTONOSUPPORT);
  return set(zmq, socket, ZMQ_CURVE_SERVER, &on, sizeof on) ||
                 set(zmq, socket, ZMQ_CURVE_SECRETKEY, keys.secret_key, KEY_SIZE) ||
                 set(zmq, socket, ZMQ_ZAP_DOMAIN, ZAP_DOMAIN, sizeof ZAP_DOMAIN - 1) ||
                 set(zmq, socket, ZMQ_ZAP_ENFORCE_DOMAIN, &on, sizeof on)
             ? -1
             : 0;
}

static int secure_client(const struct zmq *zmq, void *socket, const char *endpoint) {
  if (keys.state != ENCRYPTED) return deny(EACCES);
  const struct peer *peer = peer_at(endpoint);
  if (!peer) {
    dprintf(STDERR_FILENO, "nalb: no key for %s in %s: make keys for the addresses that the job uses\n", endpoint, keys.path);
    return deny(EACCES);
  }
  return set(zmq, socket, ZMQ_CURVE_SERVERKEY, peer->public_key, KEY_SIZE) ||
                 set(zmq, socket, ZMQ_CURVE_PUBLICKEY, keys.public_key, KEY_SIZE) ||
                 set(zmq, socket, ZMQ_CURVE_SECRETKEY, keys.secret_key, KEY_SIZE)
             ? -1
             : 0;
}

/* ---- the ZAP handler ---- */

struct guard {
  struct zmq zmq;
  void *context, *socket;
};

static _Atomic(void *) guarded; /* the context that got a guard last; NULL when it ends, before another context can have its address */

/* Whether a key is one of the job's. Compares every byte of every key, so that the time tells nothing about the result. */
static bool is_allowed(const unsigned char *key) {
  unsigned found = 0;
  for (unsigned i = 0; i < keys.count; i++) {
    unsigned differences = 0;
    for (int at = 0; at < KEY_SIZE; at++) differences |= key[at] ^ keys.peers[i].public_key[at];
    found |= ((differences - 1) >> 8) & 1; /* 1 only for 0 */
  }
  return found;
}

struct zap_request {
  char id[ZAP_ID_SIZE];
  size_t id_size;
  bool is_allowed;
};

/* Receives a request of ZAP. Its frames: version, request id, domain, address, routing id (of our own socket, not the peer's),
 * mechanism, credentials. Returns false where receiving fails, as when the context ends. */
static bool take_request(const struct zmq *zmq, void *socket, struct zap_request *request) {
  enum { VERSION, ID, DOMAIN, MECHANISM = 5, CREDENTIALS, END };
  bool right = true, has_key = false, more = true;
  request->id_size = 0;
  for (int frame = 0; more; frame++) {
    zmq_msg_t msg;
    int got;
    zmq->zmq_msg_init(&msg);
    do got = zmq->zmq_msg_recv(&msg, socket, 0);
    while (got < 0 && errno == EINTR);
    if (got < 0) return zmq->zmq_msg_close(&msg), false;
    size_t size = zmq->zmq_msg_size(&msg);
    const void *data = zmq->zmq_msg_data(&msg);
    if (frame == VERSION) right = right && size == 3 && memcmp(data, "1.0", 3) == 0;
    if (frame == DOMAIN) right = right && size == sizeof ZAP_DOMAIN - 1 && memcmp(data, ZAP_DOMAIN, size) == 0;
    if (frame == MECHANISM) right = right && size == 5 && memcmp(data, "CURVE", 5) == 0;
    if (frame == CREDENTIALS) has_key = size == KEY_SIZE && is_allowed(data);
    if (frame >= END) right = false;
    if (frame == ID && size <= sizeof request->id) memcpy(request->id, data, request->id_size = size);
    more = zmq->zmq_msg_more(&msg);
    zmq->zmq_msg_close(&msg);
  }
  request->is_allowed = right && has_key;
  return true;
}

static bool answer(const struct zmq *zmq, void *socket, const struct zap_request *request) {
  const char *status = request->is_allowed ? "200" : "400", *text = request->is_allowed ? "OK" : "unknown key";
  const struct {
    const char *data;
    size_t size;
  } frames[] = {{"1.0", 3}, {request->id, request->id_size}, {status, 3}, {text, strlen(text)}, {"", 0}, {"", 0}};
  for (size_t i = 0; i < 6; i++)
    if (zmq->zmq_send(socket, frames[i].data, frames[i].size, i < 5 ? ZMQ_SNDMORE : 0) < 0) return false;
  return true;
}

/* The handler's thread. It ends when ps-lite ends its context. Where it ends otherwise, nobody answers, and libzmq refuses every
 * peer. */
static void *guard_doors(void *opaque) {
  struct guard *guard = opaque;
  struct zap_request request;
  while (take_request(&guard->zmq, guard->socket, &request)) {
    _Atomic uint64_t *count = request.is_allowed ? &count_handshakes_allowed : &count_handshakes_refused;
    atomic_fetch_add_explicit(count, 1, memory_order_relaxed);
    if (!answer(&guard->zmq, guard->socket, &request)) break;
  }
  void *context = guard->context;
  atomic_compare_exchange_strong(&guarded, &context, NULL);
  guard->zmq.zmq_close(guard->socket);
  free(guard);
  return NULL;
}

/* Starts the ZAP handler of a context, unless the context has one. */
static int start_guard(const struct zmq *zmq, void *context) {
  pthread_t thread;
  sigset_t all, before;
  const int no_linger = 0;
  if (keys.state != ENCRYPTED) return deny(EACCES);
  if (atomic_load(&guarded) == context) return 0;
  struct guard *guard = malloc(sizeof *guard);
  if (!guard) return -1;
  guard->zmq = *zmq;
  guard->context = context;
  guard->socket = zmq->zmq_socket(context, ZMQ_REP);
  if (!guard->socket) return free(guard), -1;
  int error = 0;
  if (set(zmq, guard->socket, ZMQ_LINGER, &no_linger, sizeof no_linger) || zmq->zmq_bind(guard->socket, ZAP_ENDPOINT)) error = errno;
  if (!error) {
    atomic_store(&guarded, context); /* before the thread starts: it may end at once */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* the process's signals are for its own threads */
    error = pthread_create(&thread, NULL, guard_doors, guard);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!error) return pthread_detach(thread);
    atomic_store(&guarded, NULL);
  }
  zmq->zmq_close(guard->socket);
  free(guard);
  return error == EADDRINUSE ? 0 : deny(error);
}

#endif
