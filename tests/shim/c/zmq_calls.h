/* The part of zmq.h that the scenarios use; the wheel of pyzmq brings the library without its header. */
#ifndef ZMQ_CALLS_H
#define ZMQ_CALLS_H

#include <stddef.h>

enum { ZMQ_REP = 4, ZMQ_DEALER = 5, ZMQ_ROUTER = 6, ZMQ_PULL = 7, ZMQ_PUSH = 8 };
enum { ZMQ_ROUTING_ID = 5, ZMQ_LINGER = 17, ZMQ_RCVTIMEO = 27, ZMQ_LAST_ENDPOINT = 32, ZMQ_MAX_SOCKETS = 2 };
enum { ZMQ_DONTWAIT = 1, ZMQ_SNDMORE = 2 };
typedef struct {
  _Alignas(void *) unsigned char opaque[64];
} zmq_msg_t;

void *zmq_ctx_new(void);
int zmq_ctx_set(void *context, int option, int value);
int zmq_ctx_shutdown(void *context);
int zmq_ctx_term(void *context);
void *zmq_socket(void *context, int type);
int zmq_close(void *socket);
int zmq_setsockopt(void *socket, int option, const void *value, size_t size);
int zmq_getsockopt(void *socket, int option, void *value, size_t *size);
int zmq_bind(void *socket, const char *address);
int zmq_connect(void *socket, const char *address);
int zmq_send(void *socket, const void *data, size_t size, int flags);
int zmq_msg_init(zmq_msg_t *msg);
int zmq_msg_init_size(zmq_msg_t *msg, size_t size);
int zmq_msg_close(zmq_msg_t *msg);
int zmq_msg_move(zmq_msg_t *to, zmq_msg_t *from);
int zmq_msg_more(const zmq_msg_t *msg);
size_t zmq_msg_size(const zmq_msg_t *msg);
void *zmq_msg_data(zmq_msg_t *msg);
int zmq_msg_send(zmq_msg_t *msg, void *socket, int flags);
int zmq_msg_recv(zmq_msg_t *msg, void *socket, int flags);

#endif
