/* Stands in for libmxnet.so with a libzmq of its own inside, as the real one has: here a scripted one, so that every failure
 * can be had at will. Calls go through the PLT (build with -fPIC, default visibility) and so reach the shim first.
 *
 * Incoming frames and the results of sends are scripts; what reaches this libzmq is printed as "wire", what the caller
 * sees as "send" and "recv".
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shim.h"
#include "zmq_calls.h"

struct frame { /* what a zmq_msg_t holds here; text, so that a leak or a double free is seen by a sanitizer */
  char *text;
  int more;
};

struct step {
  const char *text; /* NULL: fail with `error` */
  int more;
  int error;
};

static const struct step *incoming;
static const int *outgoing; /* errno of each coming send, 0: taken; ends with -1, from where on all are taken */
static char sockets[2];
static uint64_t (*first_sent_ns)(void); /* NULL: not asked */

int zmq_msg_init(zmq_msg_t *msg) {
  memset(msg, 0, sizeof *msg);
  return 0;
}

int zmq_msg_init_size(zmq_msg_t *msg, size_t size) {
  zmq_msg_init(msg);
  ((struct frame *)msg)->text = calloc(1, size + 1);
  return 0;
}

int zmq_msg_close(zmq_msg_t *msg) {
  free(((struct frame *)msg)->text);
  return zmq_msg_init(msg);
}

int zmq_msg_move(zmq_msg_t *to, zmq_msg_t *from) {
  zmq_msg_close(to);
  *to = *from;
  return zmq_msg_init(from);
}

int zmq_msg_more(const zmq_msg_t *msg) { return ((const struct frame *)msg)->more; }

void *zmq_msg_data(zmq_msg_t *msg) { return ((struct frame *)msg)->text; }

size_t zmq_msg_size(const zmq_msg_t *msg) {
  const char *text = ((const struct frame *)msg)->text;
  return text ? strlen(text) : 0;
}

static int take(const char *text, int flags) {
  int error = *outgoing < 0 ? 0 : *outgoing++;
  if (error) {
    errno = error;
    return -1;
  }
  printf("wire %s%s\n", text, flags & ZMQ_SNDMORE ? " +" : "");
  if (first_sent_ns) printf("%s\n", first_sent_ns() ? "noted" : "not noted");
  return (int)strlen(text);
}

int zmq_send(void *socket, const void *data, size_t size, int flags) {
  char text[64] = {0};
  (void)socket;
  memcpy(text, data, size);
  return take(text, flags);
}

int zmq_msg_send(zmq_msg_t *msg, void *socket, int flags) {
  (void)socket;
  int sent = take(zmq_msg_data(msg), flags);
  if (sent >= 0) zmq_msg_close(msg);
  return sent;
}

int zmq_msg_recv(zmq_msg_t *msg, void *socket, int flags) {
  (void)socket, (void)flags;
  const struct step *step = incoming;
  if (!step->text) {
    errno = step->error;
    if (step->error != ENODATA) incoming++; /* ENODATA: the end of the script */
    return -1;
  }
  incoming++;
  zmq_msg_close(msg);
  ((struct frame *)msg)->text = strdup(step->text);
  ((struct frame *)msg)->more = step->more;
  return (int)strlen(step->text);
}

void *zmq_socket(void *context, int type) {
  (void)context;
  return &sockets[type == ZMQ_ROUTER];
}

int zmq_close(void *socket) {
  (void)socket;
  return 0;
}

int zmq_bind(void *socket, const char *address) {
  (void)socket, (void)address;
  return 0;
}

int zmq_connect(void *socket, const char *address) { return zmq_bind(socket, address); }

int zmq_setsockopt(void *socket, int option, const void *value, size_t size) {
  (void)socket, (void)option, (void)value, (void)size;
  return 0;
}

static int send_frame(void *socket, const char *text, int flags) {
  zmq_msg_t msg;
  zmq_msg_init_size(&msg, strlen(text));
  strcpy(zmq_msg_data(&msg), text);
  int sent = zmq_msg_send(&msg, socket, flags);
  if (sent < 0) {
    printf("send %s: %s\n", text, strerror(errno));
    zmq_msg_close(&msg);
  }
  return sent;
}

/* As ps-lite does: again after an interruption, giving up after anything else. */
static void send_message(void *socket, const int *results, const char *const *frames) {
  outgoing = results;
  for (int i = 0; frames[i]; i++) {
    int sent;
    do sent = send_frame(socket, frames[i], frames[i + 1] ? ZMQ_SNDMORE : 0);
    while (sent < 0 && errno == EINTR);
    if (sent < 0) return;
  }
}

static void receive_all(void *socket, const struct step *script) {
  incoming = script;
  zmq_msg_t msg;
  zmq_msg_init(&msg);
  for (;;) {
    int size = zmq_msg_recv(&msg, socket, 0);
    if (size < 0 && errno == ENODATA) break;
    if (size < 0)
      printf("recv %s\n", strerror(errno));
    else
      printf("recv %s%s\n", (char *)zmq_msg_data(&msg), zmq_msg_more(&msg) ? " +" : "");
  }
  zmq_msg_close(&msg);
}

#define SEND(results, ...) send_message(dealer, (const int[]){results, -1}, (const char *const[]){__VA_ARGS__, NULL})
#define RECEIVE(...) receive_all(router, (const struct step[]){__VA_ARGS__, {NULL, 0, ENODATA}})
#define FRAMES(...) __VA_ARGS__

int run(const char *scenario) {
  void *dealer = zmq_socket(NULL, ZMQ_DEALER), *router = zmq_socket(NULL, ZMQ_ROUTER);
  if (!strcmp(scenario, "forecast_interrupted")) {
    SEND(FRAMES(EINTR, EINTR), "meta", "data");
  } else if (!strcmp(scenario, "forecast_refused")) {
    SEND(EAGAIN, "meta", "data");
  } else if (!strcmp(scenario, "meta_interrupted")) {
    SEND(FRAMES(0, EINTR), "meta", "data");
  } else if (!strcmp(scenario, "data_interrupted")) {
    SEND(FRAMES(0, 0, EINTR), "meta", "data", "data");
  } else if (!strcmp(scenario, "noted_before_it_is_out")) {
    void (*mark)(void);
    *(void **)&mark = dlsym(RTLD_DEFAULT, "nalb_shim_mark");
    *(void **)&first_sent_ns = dlsym(RTLD_DEFAULT, "nalb_shim_first_sent_ns");
    for (int i = 0; i < 2; i++) {
      SEND(FRAMES(0), "control"); /* carries no data */
      SEND(FRAMES(0, 0, EINTR), "meta", "data");
      mark();
    }
    first_sent_ns = NULL;
  } else if (!strcmp(scenario, "meta_refused")) {
    SEND(FRAMES(0, EAGAIN), "meta1", "data1");
    SEND(0, "control");
    SEND(0, "meta2", "data2");
  } else if (!strcmp(scenario, "given_up_inside")) {
    SEND(FRAMES(0, 0, EAGAIN), "meta1", "data1");
    SEND(0, "meta2", "data2");
    SEND(0, "meta3", "data3");
  } else if (!strcmp(scenario, "body_interrupted")) {
    RECEIVE({"ps9", 1, 0}, {NULL, 0, EINTR}, {NULL, 0, EINTR}, {"meta", 1, 0}, {NULL, 0, EINTR}, {"data", 0, 0});
  } else if (!strcmp(scenario, "forecast_body_interrupted")) {
    RECEIVE({"ps9", 1, 0}, {NULL, 0, EINTR}, {"NALBFC01", 0, 0}, {NULL, 0, EINTR}, {"ps9", 1, 0}, {"meta", 1, 0}, {"data", 0, 0});
  } else if (!strcmp(scenario, "identity_alone")) {
    RECEIVE({"ps9", 0, 0}, {"ps11", 1, 0}, {"meta", 1, 0}, {"data", 0, 0}, {"", 0, 0}, {"ps9", 1, 0}, {"meta", 0, 0});
  } else if (!strcmp(scenario, "closed_with_held_identity")) {
    RECEIVE({"ps9", 1, 0}, {NULL, 0, EINTR});
    zmq_close(router); /* the same address again takes the same entry: a leak sanitizer sees what was left in it */
    router = zmq_socket(NULL, ZMQ_ROUTER);
    RECEIVE({"ps11", 1, 0}, {NULL, 0, EINTR}, {"meta", 0, 0});
  } else {
    return 2;
  }
  zmq_close(dealer);
  zmq_close(router);
  return 0;
}
