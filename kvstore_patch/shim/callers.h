/* Finds out who called a zmq function, and which libzmq that caller would have reached without the shim.
 *
 * Several libzmq can live in one process: libmxnet.so carries one and pyzmq brings another, both loaded RTLD_LOCAL. So the
 * shim cannot simply forward to "the" libzmq. The dynamic linker would have bound a caller to the first definition after the
 * shim in the global scope (a preloaded libzmq, or one that the program links), and failing that to the definition of the
 * caller itself or of its dependencies. `resolve` asks in that order, once per calling object, and takes all functions from
 * one library. So calls that the shim forwards and calls that never pass it (zmq_msg_init, zmq_ctx_new, ...) always reach
 * the same libzmq.
 *
 * Choice not taken: a variable that names the libzmq. It could contradict what the linker did, and then a message made by
 * one libzmq would be sent by another.
 */
#ifndef NALB_CALLERS_H
#define NALB_CALLERS_H

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
  _Alignas(void *) unsigned char opaque[64]; /* libzmq's stable ABI since 4.1 */
} zmq_msg_t;

/* Constants of zmq.h: types of sockets, their options, flags of sending and receiving. */
enum { ZMQ_REP = 4, ZMQ_DEALER = 5, ZMQ_ROUTER = 6 };
enum {
  ZMQ_ROUTING_ID = 5,
  ZMQ_LINGER = 17,
  ZMQ_TCP_KEEPALIVE = 34,
  ZMQ_TCP_KEEPALIVE_CNT = 35,
  ZMQ_TCP_KEEPALIVE_IDLE = 36,
  ZMQ_TCP_KEEPALIVE_INTVL = 37,
  ZMQ_CURVE_SERVER = 47,
  ZMQ_CURVE_PUBLICKEY = 48,
  ZMQ_CURVE_SECRETKEY = 49,
  ZMQ_CURVE_SERVERKEY = 50,
  ZMQ_ZAP_DOMAIN = 55,
  ZMQ_ZAP_ENFORCE_DOMAIN = 93
};
enum { ZMQ_DONTWAIT = 1, ZMQ_SNDMORE = 2 };

/* The table of intercepted functions: type of the result, result where no libzmq is found, name, parameters, arguments. */
#define NALB_HOOKS(X)                                                                               \
  X(void *, NULL, zmq_socket, (void *context, int type), (context, type))                           \
  X(int, -1, zmq_close, (void *socket), (socket))                                                   \
  X(int, -1, zmq_bind, (void *socket, const char *endpoint), (socket, endpoint))                    \
  X(int, -1, zmq_connect, (void *socket, const char *endpoint), (socket, endpoint))                 \
  X(int, -1, zmq_setsockopt, (void *socket, int option, const void *value, size_t size),            \
    (socket, option, value, size))                                                                  \
  X(int, -1, zmq_msg_send, (zmq_msg_t * msg, void *socket, int flags), (msg, socket, flags))        \
  X(int, -1, zmq_msg_recv, (zmq_msg_t * msg, void *socket, int flags), (msg, socket, flags))        \
  X(int, 0, zmq_msg_more, (const zmq_msg_t *msg), (msg))

/* The other functions that the shim itself calls. */
#define NALB_NEEDED(X)                                                                              \
  X(int, -1, zmq_send, (void *socket, const void *data, size_t size, int flags), ())                \
  X(int, -1, zmq_msg_init, (zmq_msg_t * msg), ())                                                   \
  X(int, -1, zmq_msg_init_size, (zmq_msg_t * msg, size_t size), ())                                 \
  X(int, -1, zmq_msg_close, (zmq_msg_t * msg), ())                                                  \
  X(int, -1, zmq_msg_move, (zmq_msg_t * to, zmq_msg_t * from), ())                                  \
  X(size_t, 0, zmq_msg_size, (const zmq_msg_t *msg), ())                                            \
  X(void *, NULL, zmq_msg_data, (zmq_msg_t * msg), ())

#define NALB_UNPACK(...) __VA_ARGS__

struct zmq {
#define NALB_MEMBER(result, failure, name, parameters, arguments) result(*name) parameters;
  NALB_HOOKS(NALB_MEMBER)
  NALB_NEEDED(NALB_MEMBER)
#undef NALB_MEMBER
};

struct caller {
  uintptr_t low;
  _Atomic uintptr_t high; /* written last; 0: the entry is not complete yet */
  bool acts;              /* whether the caller is ps-lite, for which the shim does its work; other callers are passed through */
  struct zmq zmq;
};

enum { CALLERS = 64 }; /* objects of one process that call libzmq; each call of a further object is resolved anew */

static struct caller callers[CALLERS];
static _Atomic unsigned callers_claimed;

struct mapping {
  uintptr_t address, low, high;
  const char *path; /* "" for the program itself; NULL: no object is mapped there */
};

static int note_mapping(struct dl_phdr_info *info, size_t size, void *opaque) {
  struct mapping *mapping = opaque;
  uintptr_t low = UINTPTR_MAX, high = 0;
  (void)size;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const ElfW(Phdr) *part = &info->dlpi_phdr[i];
    if (part->p_type != PT_LOAD) continue;
    uintptr_t start = info->dlpi_addr + part->p_vaddr;
    if (start < low) low = start;
    if (start + part->p_memsz > high) high = start + part->p_memsz;
  }
  if (mapping->address < low || mapping->address >= high) return 0;
  mapping->low = low;
  mapping->high = high;
  mapping->path = info->dlpi_name ? info->dlpi_name : "";
  return 1;
}

static bool is_acting(const char *path) {
  const char *wanted = getenv("NALB_SHIM_CALLER"); /* set by tests, which have a caller of their own */
  const char *slash = strrchr(path, '/');
  return strcmp(slash ? slash + 1 : path, wanted ? wanted : "libmxnet.so") == 0;
}

/* Fills in the caller's libzmq. The handle of dlopen stays open, so that an object in the table is never unmapped and its
 * addresses are never given to another. */
static void resolve(struct caller *caller, const struct mapping *mapping) {
  void *own = mapping->path && *mapping->path ? dlopen(mapping->path, RTLD_LAZY | RTLD_NOLOAD) : NULL;
  void *source = dlsym(RTLD_NEXT, "zmq_msg_send") ? RTLD_NEXT : own;
  bool complete = source != NULL;
  memset(&caller->zmq, 0, sizeof caller->zmq);
#define NALB_FIND(result, failure, name, parameters, arguments)                     \
  if (source) caller->zmq.name = (result(*) parameters)dlsym(source, #name);        \
  complete = complete && caller->zmq.name;
  NALB_HOOKS(NALB_FIND)
  NALB_NEEDED(NALB_FIND)
#undef NALB_FIND
  bool acting = mapping->path && is_acting(mapping->path);
  caller->acts = complete && acting;
  if (acting && !complete && getenv("NALB_KEYS")) memset(&caller->zmq, 0, sizeof caller->zmq); /* no call works: no plain text */
}

static const struct caller *add_caller(uintptr_t address) {
  static _Thread_local struct caller beyond;
  int saved = errno;
  struct mapping mapping = {.address = address};
  dl_iterate_phdr(note_mapping, &mapping);
  unsigned at = mapping.path ? atomic_fetch_add(&callers_claimed, 1) : CALLERS;
  struct caller *caller = at < CALLERS ? &callers[at] : &beyond;
  resolve(caller, &mapping);
  caller->low = mapping.low;
  atomic_store_explicit(&caller->high, mapping.high, memory_order_release);
  errno = saved;
  return caller;
}

/* The table's entry for the object at this address. Two threads that meet a new object at once may both add it; the entries
 * are equal, and the first one found is used. */
static inline const struct caller *caller_at(void *return_address) {
  uintptr_t address = (uintptr_t)return_address;
  unsigned claimed = atomic_load_explicit(&callers_claimed, memory_order_acquire);
  for (unsigned i = 0; i < claimed && i < CALLERS; i++) {
    uintptr_t high = atomic_load_explicit(&callers[i].high, memory_order_acquire);
    if (address < high && address >= callers[i].low) return &callers[i];
  }
  return add_caller(address);
}

#endif
