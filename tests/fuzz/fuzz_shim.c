/* The shim fed with frames that nobody would send, by a libzmq that is scripted and fails when it likes; one process, sanitizers.
 *
 * Usage: shim INPUTS SEED. An input is what one socket meets: up to 24 messages of 1 to 5 frames, interrupted now and then. Checked:
 * ps-lite gets exactly the frames that are no forecasts, in order and with the same ends; no frame is kept or freed twice; each
 * sample is of a message that arrived, with its peer and its bytes. Each frame that ps-lite sends goes out once, with its bytes and
 * flags, one that fails stays whole, and at most one forecast goes before a message. A socket's id goes out with the job's name.
 *
 * With -DGUIDED, for clang's libFuzzer: what is drawn comes from the fuzzer's bytes, and from the generator once they are used up.
 */
#define _GNU_SOURCE
#include "shim.c"

#include <stdio.h>
#include <sys/resource.h>

enum { FRAMES = 128, LONGEST = 48 };

struct frame {
  char *data; /* malloc: leaks and double frees are seen */
  size_t size, own_size; /* own_size: of what ps-lite gets of it */
  bool more, is_dropped; /* is_dropped: as a forecast, or as another job's */
};

static struct frame script[FRAMES];
static int scripted, at;          /* frames of the input, and those handed out */
static int failures;              /* how often the next calls fail */
static bool was_inside, announced; /* sending: amid a message on the wire; a forecast went before the next message */
static struct frame offered;       /* the frame that ps-lite sends */
static int offered_flags;
static char own_id[8];             /* of a sender, as ps-lite gives it */
static size_t own_id_length;
static uint64_t sent_frames, sent_bodies, live; /* sent_bodies: without forecasts */
static uint64_t state;
static const uint8_t *given; /* bytes to draw from first */
static size_t given_left;

static uint64_t draw(uint64_t below) { /* xorshift64* */
  if (given_left) return given_left--, *given++ % below;
  state ^= state >> 12, state ^= state << 25, state ^= state >> 27;
  return (state * 0x2545F4914F6CDD1Du >> 33) % below;
}

#define MUST(condition) \
  do                    \
    if (!(condition)) fprintf(stderr, "line %d: %s\n", __LINE__, #condition), abort(); \
  while (0)

static struct frame *frame_of(const zmq_msg_t *msg) { return (struct frame *)(uintptr_t)msg; }

static int fake_init(zmq_msg_t *msg) { return memset(msg, 0, sizeof *msg), 0; }

static int fake_close(zmq_msg_t *msg) {
  if (frame_of(msg)->data) live--;
  free(frame_of(msg)->data);
  return fake_init(msg);
}

static int fake_move(zmq_msg_t *to, zmq_msg_t *from) {
  fake_close(to);
  *to = *from;
  return fake_init(from);
}

static int fake_more(const zmq_msg_t *msg) { return frame_of(msg)->more; }
static int fake_init_size(zmq_msg_t *msg, size_t size) {
  fake_init(msg);
  frame_of(msg)->data = malloc(size + 1);
  frame_of(msg)->size = size;
  live++;
  return 0;
}
static size_t fake_size(const zmq_msg_t *msg) { return frame_of(msg)->size; }
static void *fake_data(zmq_msg_t *msg) { return frame_of(msg)->data; }

static bool fails(void) {
  if (!failures) return draw(16) == 0 ? failures = (int)draw(3), errno = EINTR, true : false;
  failures--;
  errno = draw(2) ? EINTR : EAGAIN;
  return true;
}

static void fill(struct frame *to, const struct frame *from) {
  free(to->data);
  *to = *from;
  to->data = malloc(from->size + 1);
  memcpy(to->data, from->data, from->size);
  live++;
}

static int fake_recv(zmq_msg_t *msg, void *socket, int flags) {
  (void)socket, (void)flags;
  if (at == scripted) return errno = EAGAIN, -1;
  if (fails()) return -1;
  if (frame_of(msg)->data) live--;
  fill(frame_of(msg), &script[at++]);
  return (int)frame_of(msg)->size;
}

static int on_the_wire(bool more) {
  was_inside = more;
  sent_frames++;
  return 0;
}

static int fake_send(void *socket, const void *data, size_t size, int flags) {
  (void)socket;
  if (fails()) return -1;
  MUST(size == 8 && memcmp(data, "NALBFC01", 8) == 0 && !(flags & ZMQ_SNDMORE));
  MUST((flags & ZMQ_DONTWAIT) == (offered_flags & ZMQ_DONTWAIT));
  MUST(!was_inside && !announced);
  announced = true;
  return on_the_wire(false), (int)size;
}

static bool is_offered(const zmq_msg_t *msg) {
  return frame_of(msg)->size == offered.size && memcmp(frame_of(msg)->data, offered.data, offered.size) == 0;
}

static int fake_msg_send(zmq_msg_t *msg, void *socket, int flags) {
  (void)socket;
  int size = (int)fake_size(msg);
  MUST(flags == offered_flags && is_offered(msg));
  if (fails()) return -1;
  announced = false;
  on_the_wire(flags & ZMQ_SNDMORE);
  fake_close(msg);
  sent_bodies++;
  return size;
}

static void *fake_socket(void *context, int type) { return (void)type, context; }
static int fake_close_socket(void *socket) { return (void)socket, 0; }
static int fake_setsockopt(void *socket, int option, const void *value, size_t size) {
  char named[32];
  (void)socket;
  if (option != ZMQ_ROUTING_ID) return 0;
  if (!job.size) {
    MUST(size == own_id_length && memcmp(value, own_id, size) == 0);
    return 0;
  }
  int length = snprintf(named, sizeof named, "%.*s%s", (int)own_id_length, own_id, own_id_length ? "@job" : "@job/");
  MUST(size == (size_t)length + (own_id_length ? 0 : 16) && memcmp(value, named, (size_t)length) == 0);
  return 0;
}

static const struct zmq fake = {
    .zmq_socket = fake_socket, .zmq_close = fake_close_socket, .zmq_setsockopt = fake_setsockopt, .zmq_msg_send = fake_msg_send,
    .zmq_msg_recv = fake_recv, .zmq_send = fake_send, .zmq_msg_init = fake_init, .zmq_msg_close = fake_close,
    .zmq_msg_init_size = fake_init_size,
    .zmq_msg_move = fake_move, .zmq_msg_more = fake_more, .zmq_msg_size = fake_size, .zmq_msg_data = fake_data,
};

static void add(const void *data, size_t size, bool more, bool is_dropped) {
  struct frame *frame = &script[scripted++];
  frame->data = malloc(size + 1);
  if (size) memcpy(frame->data, data, size);
  frame->size = frame->own_size = size, frame->more = more, frame->is_dropped = is_dropped;
}

/* An identity, then bodies. A lone body with the magic is a forecast of whatever version, and must not arrive. In a job with a name,
 * nothing of another job may arrive, and identities arrive without the name. */
static void add_message(bool is_named) {
  static const char *const names[] = {"ps8", "ps9", "ps", "ps4095", "ps4096", "ps99999999999", "psx", "\0abcd", "NALBFC01", ""};
  static const char *const bodies[] = {"NALBFC01", "NALBFC02", "NALBFC", "NALB", "NALBFC01and more", "x", "", "NALBFD01"};
  static const size_t sizes[] = {3, 3, 2, 6, 6, 13, 3, 5, 8, 0};
  static const struct {
    const char *name;
    int own_size;
  } named[] = {{"ps8@job", 3}, {"ps9@job", 3}, {"@job/0123456789abcdef", 0}, {"@job", 0}, {"ps4096@job", 6}, {"x@job", 1},
               {"ps9", -1}, {"ps9@jo", -1}, {"ps9@jobs", -1}, {"ps9@other@job", -1}, {"@job0", -1}, {"@", -1}, {"", -1}, {"ps9@job/", -1}};
  char noise[LONGEST];
  size_t name = draw(is_named ? 14 : 10), body = draw(8), size = strlen(bodies[body]), frames = draw(8) ? 1 + draw(3) : 0;
  bool is_foreign = is_named && named[name].own_size < 0;
  bool is_forecast = frames == 1 && size >= 8 && size <= 32 && memcmp(bodies[body], "NALBFC", 6) == 0;
  size_t identity = (size_t)scripted;
  if (is_named)
    add(named[name].name, strlen(named[name].name), frames > 0, is_foreign || is_forecast);
  else
    add(names[name], sizes[name], frames > 0, is_forecast);
  if (is_named && !is_foreign) script[identity].own_size = (size_t)named[name].own_size;
  for (size_t i = 0; i < frames; i++) {
    bool is_noise = i > 0 || draw(3) == 0;
    if (i == 0 && is_noise) is_forecast = false, script[identity].is_dropped = is_foreign;
    size_t length = is_noise ? draw(LONGEST) : size;
    for (size_t k = 0; k < length; k++) noise[k] = is_noise ? (char)draw(256) : bodies[body][k];
    if (is_noise && length) noise[0] = 'm';
    add(noise, length, i + 1 < frames, is_foreign || is_forecast);
  }
}

/* The number in an identity "ps<number>"; -1 where it is none, or too large to be timed. */
static int id_in(const struct frame *identity) {
  char text[LONGEST] = "", *end = text;
  memcpy(text, identity->data, identity->own_size);
  unsigned long id = strncmp(text, "ps", 2) == 0 ? strtoul(text + 2, &end, 10) : 0;
  return identity->own_size > 2 && end == text + identity->own_size && id < PEERS ? (int)id : -1;
}

/* Takes the samples of an input. Each is of one of the messages that arrived, in their order. */
static void check_samples(const struct nalb_sample *arrived, int messages) {
  struct nalb_sample taken[FRAMES];
  int message = 0;
  for (int i = 0, count = nalb_shim_drain(taken, FRAMES); i < count; i++, message++) {
    const struct nalb_sample *of = &taken[i];
    while (message < messages && (arrived[message].peer != of->peer || arrived[message].size_bytes != of->size_bytes)) message++;
    MUST(message < messages && 0 < of->start_ns && of->start_ns <= of->end_ns);
  }
}

static void receive_all(void *socket) {
  struct nalb_sample arrived[FRAMES], now = {0};
  int expected = 0, messages = 0, frames = 0;
  zmq_msg_t msg;
  fake_init(&msg);
  bool is_cut = false;
  for (int idle = 0; idle < 50 && !is_cut;) {
    int got = on_zmq_msg_recv(&fake, &msg, socket, 0);
    if (got < 0) {
      idle += at == scripted;
      continue;
    }
    while (expected < scripted && script[expected].is_dropped) expected++;
    MUST(expected < scripted);
    MUST((size_t)got == script[expected].own_size && fake_size(&msg) == script[expected].own_size);
    MUST(memcmp(fake_data(&msg), script[expected].data, script[expected].own_size) == 0);
    MUST((on_zmq_msg_more(&fake, &msg) != 0) == script[expected].more);
    if (frames++ == 0)
      now = (struct nalb_sample){.peer = id_in(&script[expected])};
    else
      now.size_bytes += script[expected].size;
    if (!script[expected].more) arrived[messages++] = now, frames = 0;
    expected++;
    is_cut = draw(200) == 0; /* closed amid what it may hold */
  }
  while (expected < scripted && script[expected].is_dropped) expected++;
  MUST(is_cut || expected == scripted);
  check_samples(arrived, messages);
  fake_close(&msg);
}

static void send_some(void *socket) {
  char bytes[LONGEST];
  for (uint64_t count = draw(6); count--;) {
    uint64_t frames = 1 + draw(4), retries = 0;
    for (uint64_t i = 0; i < frames; i++) {
      zmq_msg_t msg;
      fake_init(&msg);
      offered = (struct frame){.data = bytes, .size = draw(LONGEST)};
      offered_flags = (i + 1 < frames ? ZMQ_SNDMORE : 0) | (draw(2) ? ZMQ_DONTWAIT : 0);
      for (size_t k = 0; k < offered.size; k++) bytes[k] = (char)draw(256);
      fill(frame_of(&msg), &offered);
      uint64_t before = sent_bodies;
      int sent;
      while ((sent = on_zmq_msg_send(&fake, &msg, socket, offered_flags)) < 0 && ++retries < 20) MUST(is_offered(&msg));
      MUST(sent < 0 ? sent_bodies == before && is_offered(&msg) : sent == (int)offered.size && sent_bodies == before + 1);
      fake_close(&msg);
      if (retries == 20) break;
    }
  }
}

static uint64_t one_input(void) { /* returns its frames */
  static char places[64];
  void *socket = &places[draw(sizeof places)];
  is_job_named(); /* reads the environment once, before the name is set here */
  bool is_named = draw(2);
  strcpy(job.suffix, is_named ? "@job" : "");
  job.size = strlen(job.suffix);
  scripted = at = 0;
  if (draw(3)) {
    MUST(on_zmq_socket(&fake, socket, ZMQ_ROUTER) == socket);
    for (uint64_t messages = draw(24); messages--;) add_message(is_named);
    receive_all(socket);
  } else {
    MUST(on_zmq_socket(&fake, socket, ZMQ_DEALER) == socket);
    own_id_length = (size_t)snprintf(own_id, sizeof own_id, "ps%u", (unsigned)draw(9999));
    own_id_length = draw(own_id_length + 1); /* 0: none so far */
    MUST(on_zmq_setsockopt(&fake, socket, ZMQ_ROUTING_ID, own_id, own_id_length) == 0);
    was_inside = announced = false;
    send_some(socket);
  }
  on_zmq_close(&fake, socket);
  for (int i = 0; i < scripted; i++) free(script[i].data);
  MUST(live == 0);
  return (uint64_t)scripted;
}

#ifdef GUIDED
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  state = 0x9E3779B97F4A7C15u, given = data, given_left = size, failures = 0;
  one_input();
  return 0;
}
#else
int main(int count, char **words) {
  uint64_t inputs = count > 1 ? strtoull(words[1], NULL, 10) : 1000, frames = 0;
  struct rusage early, late;
  struct timespec begin, end;
  state = 0x9E3779B97F4A7C15u + (count > 2 ? strtoull(words[2], NULL, 10) : 1);
  clock_gettime(CLOCK_MONOTONIC, &begin);
  for (uint64_t input = 0; input < inputs; input++) {
    if (input == inputs / 10) getrusage(RUSAGE_SELF, &early);
    frames += one_input();
  }
  getrusage(RUSAGE_SELF, &late);
  clock_gettime(CLOCK_MONOTONIC, &end);
  double took_s = (double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec);
  printf("shim: %llu inputs (%llu frames in, %llu out), %.0f/s, grew %.1f MB\n", (unsigned long long)inputs, (unsigned long long)frames,
         (unsigned long long)sent_frames, (double)inputs / took_s, (double)(late.ru_maxrss - early.ru_maxrss) * 1024e-6);
  return 0;
}
#endif
