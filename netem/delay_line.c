/* See delay_line.h. One thread carries (nalb_line_run); any other may set impairments and read counters. */
#define _GNU_SOURCE
#include "delay_line.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/virtio_net.h>
#include <malloc.h>
#include <net/if.h>
#include <netinet/ip.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <stdalign.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define NS_PER_S 1000000000ull
#define LATE_NS 500000ull
/* While packets come or go, the thread looks for them this often: a wake-up for each packet would cost more than carrying it. The
 * kernel stamps each arrival. A packet leaves in the look nearest to its due time, so it is off by at most half of this. */
#define LOOK_NS 200000ull
#define BUNCH_BYTES (1 << 16)                     /* the largest IPv4 packet, and so the largest bunch */
#define FRAME_BYTES (BUNCH_BYTES + ETH_HLEN)
#define BATCH 16                                  /* bunches fetched by one system call */
#define ROUNDS 4                                  /* system calls on one interface before others have their turn */
#define QUEUE_BYTES (1 << 28)                     /* what the kernel may hold for us while we are late: 1 s at 1 Gbit/s */
/* Packets that wait in a shaper behind us count as unsent. Without root in the machine's own user namespace a socket may have few
 * unsent bytes, so there are more sockets then. */
#define UNSENT_BYTES (1 << 30)
#define MOST_SENDERS 64
#define EVENTS 512                                /* so many that even of 250 links each way has its turn in every look */
#define NICE (-20)

enum stream { LOSS = 1, REORDERING = 2, JITTER = 3 }; /* each way draws three independent series */

struct packet {
    uint64_t due_ns;
    uint64_t number;      /* in the order of arrival: a tie goes to the earlier */
    uint32_t way;
    uint32_t frame_bytes;
    struct virtio_net_hdr offload;
    unsigned char frame[];
};

struct rule {
    uint32_t destination;
    struct nalb_impairment impairment;
    uint64_t latest_due_ns; /* packets to one destination keep their order; those to others do not wait for them */
};

struct way {
    int source, interface; /* socket that packets come from; index of the interface they leave by */
    int senders[MOST_SENDERS];
    uint32_t num_senders, sender; /* how many are open, and the one used last */
    uint64_t seed;
    uint64_t packets;     /* counted so far: the next packet's number */
    uint64_t bunches;
    uint32_t num_rules;   /* the first is for all destinations without a rule of their own */
    struct rule *rules;
};

struct nalb_line {
    pthread_mutex_t lock; /* held while packets are carried, not while waiting for them */
    uint32_t num_ways;
    struct way *ways;
    struct packet **heap; /* the next due first */
    size_t num_waiting, heap_size;
    uint64_t number;
    struct nalb_line_counters counters;
    struct virtio_net_hdr offloads[BATCH];
    unsigned char *frames; /* BATCH x FRAME_BYTES */
};

static uint64_t ns_of(const struct timespec *time)
{
    return (uint64_t)time->tv_sec * NS_PER_S + (uint64_t)time->tv_nsec;
}

static uint64_t now_ns(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return ns_of(&now);
}

/* splitmix64 (Steele, Lea, Flood 2014). Its state is a counter, so its n-th output needs none of those before. */
double nalb_line_uniform(uint64_t seed, uint64_t index)
{
    uint64_t mixed = seed + (index + 1) * 0x9e3779b97f4a7c15ull;
    mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9ull;
    mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111ebull;
    mixed ^= mixed >> 31;
    return (double)(mixed >> 11) * 0x1p-53;
}

static double drawn(const struct way *way, enum stream stream, uint64_t index)
{
    return nalb_line_uniform(way->seed ^ (uint64_t)stream << 60, index);
}

/* ---- waiting packets: a binary heap ---- */

static bool is_before(const struct packet *one, const struct packet *other)
{
    return one->due_ns != other->due_ns ? one->due_ns < other->due_ns : one->number < other->number;
}

static bool push(struct nalb_line *line, struct packet *packet)
{
    if (line->num_waiting == line->heap_size) {
        size_t size = line->heap_size ? 2 * line->heap_size : 1024;
        struct packet **heap = realloc(line->heap, size * sizeof *heap);
        if (!heap)
            return false;
        line->heap = heap;
        line->heap_size = size;
    }
    size_t place = line->num_waiting++;
    for (; place && is_before(packet, line->heap[(place - 1) / 2]); place = (place - 1) / 2)
        line->heap[place] = line->heap[(place - 1) / 2];
    line->heap[place] = packet;
    return true;
}

static struct packet *pop(struct nalb_line *line)
{
    struct packet *first = line->heap[0], *last = line->heap[--line->num_waiting];
    size_t place = 0;
    for (;;) {
        size_t child = 2 * place + 1;
        if (child >= line->num_waiting)
            break;
        if (child + 1 < line->num_waiting && is_before(line->heap[child + 1], line->heap[child]))
            child++;
        if (!is_before(line->heap[child], last))
            break;
        line->heap[place] = line->heap[child];
        place = child;
    }
    line->heap[place] = last;
    return first;
}

/* ---- what comes in ---- */

/* A bunch of TCP packets over IPv4, or one packet of any kind. */
struct bunch {
    const struct virtio_net_hdr *offload;
    const unsigned char *frame;
    uint32_t frame_bytes;
    uint32_t ip_bytes, header_bytes; /* of a bunch: the IP header, and all headers */
    uint32_t segments;
};

/* Returns whether the frame is IPv4, and stores its destination. */
static bool find_destination(const unsigned char *frame, uint32_t frame_bytes, uint32_t *destination)
{
    uint16_t protocol;
    if (frame_bytes < ETH_HLEN + sizeof(struct iphdr))
        return false;
    memcpy(&protocol, frame + 2 * ETH_ALEN, sizeof protocol);
    memcpy(destination, frame + ETH_HLEN + offsetof(struct iphdr, daddr), sizeof *destination);
    return protocol == htons(ETH_P_IP);
}

static struct bunch bunch_of(const struct virtio_net_hdr *offload, const unsigned char *frame, uint32_t frame_bytes)
{
    struct bunch bunch = {offload, frame, frame_bytes, 0, 0, 1};
    if ((offload->gso_type & ~VIRTIO_NET_HDR_GSO_ECN) != VIRTIO_NET_HDR_GSO_TCPV4 || !offload->gso_size ||
        frame_bytes < ETH_HLEN + sizeof(struct iphdr) + sizeof(struct tcphdr))
        return bunch;
    uint32_t ip_bytes = (frame[ETH_HLEN] & 15u) * 4;
    if (ip_bytes < sizeof(struct iphdr) || frame_bytes < ETH_HLEN + ip_bytes + sizeof(struct tcphdr))
        return bunch;
    uint32_t tcp_bytes = (frame[ETH_HLEN + ip_bytes + 12] >> 4) * 4u, header_bytes = ETH_HLEN + ip_bytes + tcp_bytes;
    if (tcp_bytes < sizeof(struct tcphdr) || frame_bytes <= header_bytes)
        return bunch;
    bunch.ip_bytes = ip_bytes;
    bunch.header_bytes = header_bytes;
    bunch.segments = (frame_bytes - header_bytes + offload->gso_size - 1) / offload->gso_size;
    return bunch;
}

static struct rule *rule_of(const struct way *way, const struct bunch *bunch)
{
    uint32_t destination;
    if (way->num_rules > 1 && find_destination(bunch->frame, bunch->frame_bytes, &destination))
        for (uint32_t number = 1; number < way->num_rules; number++)
            if (way->rules[number].destination == destination)
                return &way->rules[number];
    return &way->rules[0];
}

/* Returns when a bunch that came in at came_ns is due. */
static uint64_t due_ns(const struct way *way, struct rule *rule, uint64_t came_ns)
{
    const struct nalb_impairment *impairment = &rule->impairment;
    if (impairment->reorder_part > 0 && drawn(way, REORDERING, way->bunches) < impairment->reorder_part)
        return came_ns;
    uint64_t due = came_ns + impairment->delay_ns;
    if (impairment->jitter_ns) {
        uint64_t period_ns = 2 * impairment->jitter_ns, period = came_ns / period_ns;
        double part = (double)(came_ns % period_ns) / (double)period_ns;
        double from = drawn(way, JITTER, period), to = drawn(way, JITTER, period + 1);
        due += (uint64_t)((from + (to - from) * part) * (double)period_ns) - impairment->jitter_ns;
    }
    if (due < rule->latest_due_ns) /* the delay was lowered */
        due = rule->latest_due_ns;
    rule->latest_due_ns = due;
    return due;
}

static uint32_t sum16(const unsigned char *bytes, uint32_t num_bytes)
{
    uint32_t sum = 0;
    for (uint32_t at = 0; at + 1 < num_bytes; at += 2)
        sum += (uint32_t)bytes[at] << 8 | bytes[at + 1];
    return sum;
}

static uint16_t folded(uint32_t sum)
{
    while (sum >> 16)
        sum = (sum & 0xffff) + (sum >> 16);
    return htons((uint16_t)sum);
}

/* Makes the copy of a bunch's headers right for its segments [first, first + count), as the kernel would on a wire. */
static void adjust_headers(const struct bunch *bunch, struct packet *packet, uint32_t first, uint32_t count)
{
    struct iphdr ip;
    struct tcphdr tcp;
    unsigned char *ip_at = packet->frame + ETH_HLEN, *tcp_at = ip_at + bunch->ip_bytes;
    memcpy(&ip, ip_at, sizeof ip);
    memcpy(&tcp, tcp_at, sizeof tcp);
    ip.tot_len = htons((uint16_t)(packet->frame_bytes - ETH_HLEN));
    ip.id = htons((uint16_t)(ntohs(ip.id) + first));
    ip.check = 0;
    memcpy(ip_at, &ip, sizeof ip);
    ip.check = (uint16_t)~folded(sum16(ip_at, bunch->ip_bytes));
    memcpy(ip_at, &ip, sizeof ip);
    tcp.seq = htonl(ntohl(tcp.seq) + first * bunch->offload->gso_size);
    if (first > 0)
        tcp.th_flags &= (uint8_t)~0x80; /* only the first segment has CWR */
    if (first + count < bunch->segments)
        tcp.th_flags &= (uint8_t)~(TH_FIN | TH_PUSH); /* only the last one has these */
    uint32_t tcp_bytes = packet->frame_bytes - ETH_HLEN - bunch->ip_bytes;
    tcp.check = folded(sum16(ip_at + offsetof(struct iphdr, saddr), 8) + IPPROTO_TCP + tcp_bytes); /* the kernel adds the rest */
    memcpy(tcp_at, &tcp, sizeof tcp);
    packet->offload.flags = VIRTIO_NET_HDR_F_NEEDS_CSUM;
    packet->offload.hdr_len = (uint16_t)bunch->header_bytes; /* the kernel refuses one that exceeds the packet */
    packet->offload.csum_start = (uint16_t)(ETH_HLEN + bunch->ip_bytes);
    packet->offload.csum_offset = offsetof(struct tcphdr, check);
    if (count == 1) {
        packet->offload.gso_type = VIRTIO_NET_HDR_GSO_NONE;
        packet->offload.gso_size = 0;
    }
}

/* Puts segments [first, first + count) of a bunch into the heap, where they wait until `due`. */
static void hold(struct nalb_line *line, uint32_t way, const struct bunch *bunch, uint32_t first, uint32_t count,
                 uint64_t due)
{
    uint32_t from = 0, to = bunch->frame_bytes, headers = 0;
    bool is_whole = count == bunch->segments;
    if (!is_whole) {
        headers = bunch->header_bytes;
        from = headers + first * bunch->offload->gso_size;
        if (first + count < bunch->segments)
            to = from + count * bunch->offload->gso_size;
    }
    struct packet *packet = malloc(sizeof *packet + headers + to - from);
    if (packet) {
        packet->due_ns = due;
        packet->number = line->number++;
        packet->way = way;
        packet->frame_bytes = headers + to - from;
        packet->offload = *bunch->offload;
        memcpy(packet->frame, bunch->frame, headers);
        memcpy(packet->frame + headers, bunch->frame + from, to - from);
        if (!is_whole)
            adjust_headers(bunch, packet, first, count);
    }
    if (!packet || !push(line, packet)) {
        free(packet);
        line->counters.refused++;
        return;
    }
    line->counters.waiting_bytes += packet->frame_bytes;
}

/* Takes one bunch in: drops the segments that are to be lost, and holds the runs between them. */
static void take(struct nalb_line *line, uint32_t number, const struct bunch *bunch, uint64_t came_ns)
{
    struct way *way = &line->ways[number];
    struct rule *rule = rule_of(way, bunch);
    const struct nalb_impairment *impairment = &rule->impairment;
    uint64_t due = due_ns(way, rule, came_ns);
    uint32_t first = 0;
    way->bunches++;
    line->counters.bunches++;
    line->counters.packets += bunch->segments;
    if (impairment->loss_part > 0)
        for (uint32_t segment = 0; segment < bunch->segments; segment++)
            if (drawn(way, LOSS, way->packets + segment) < impairment->loss_part) {
                line->counters.lost++;
                if (segment > first)
                    hold(line, number, bunch, first, segment - first, due);
                first = segment + 1;
            }
    if (first < bunch->segments)
        hold(line, number, bunch, first, bunch->segments - first, due);
    way->packets += bunch->segments;
}

/* Returns how long ago a message came. The kernel stamps by the clock that people set, so a senseless age counts as 0. */
static uint64_t age_ns(struct msghdr *message, uint64_t real_ns)
{
    for (struct cmsghdr *part = CMSG_FIRSTHDR(message); part; part = CMSG_NXTHDR(message, part))
        if (part->cmsg_level == SOL_SOCKET && part->cmsg_type == SCM_TIMESTAMPNS) {
            struct timespec stamp;
            memcpy(&stamp, CMSG_DATA(part), sizeof stamp);
            uint64_t age = real_ns - ns_of(&stamp);
            return age < NS_PER_S ? age : 0;
        }
    return 0;
}

/* Fetches the packets that have come on one way. */
static void fetch(struct nalb_line *line, uint32_t number)
{
    for (int round = 0; round < ROUNDS; round++) {
        struct mmsghdr messages[BATCH] = {0};
        struct iovec parts[BATCH][2];
        alignas(struct cmsghdr) char stamps[BATCH][CMSG_SPACE(sizeof(struct timespec))];
        for (int i = 0; i < BATCH; i++) {
            parts[i][0] = (struct iovec){&line->offloads[i], sizeof line->offloads[i]};
            parts[i][1] = (struct iovec){line->frames + (size_t)i * FRAME_BYTES, FRAME_BYTES};
            messages[i].msg_hdr = (struct msghdr){.msg_iov = parts[i], .msg_iovlen = 2, .msg_control = stamps[i],
                                                  .msg_controllen = sizeof stamps[i]};
        }
        int came = recvmmsg(line->ways[number].source, messages, BATCH, MSG_DONTWAIT, NULL);
        if (came < 0 && errno != EAGAIN && errno != EINTR)
            line->counters.refused++; /* the packet's kind has no offload header, or the interface went down */
        uint64_t real_ns = now_ns(CLOCK_REALTIME), now = now_ns(CLOCK_MONOTONIC);
        for (int i = 0; i < came; i++) {
            if (messages[i].msg_hdr.msg_flags & MSG_TRUNC || messages[i].msg_len <= sizeof line->offloads[i]) {
                line->counters.refused++;
                continue;
            }
            uint32_t frame_bytes = messages[i].msg_len - (uint32_t)sizeof line->offloads[i];
            struct bunch bunch = bunch_of(&line->offloads[i], parts[i][1].iov_base, frame_bytes);
            take(line, number, &bunch, now - age_ns(&messages[i].msg_hdr, real_ns));
        }
        if (came < BATCH)
            return;
    }
}

/* ---- what goes out ---- */

static int open_socket(int interface, uint16_t protocol);

static bool is_sent(struct way *way, const struct packet *packet)
{
    struct iovec parts[2] = {{(void *)&packet->offload, sizeof packet->offload},
                             {(void *)packet->frame, packet->frame_bytes}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    for (uint32_t tries = 0; tries < way->num_senders; tries++) {
        if (sendmsg(way->senders[way->sender], &message, MSG_DONTWAIT) >= 0)
            return true;
        if (errno != EAGAIN)
            return false;
        way->sender = (way->sender + 1) % way->num_senders; /* this socket has as many unsent bytes as it may */
    }
    if (way->num_senders == MOST_SENDERS)
        return false;
    int opened = open_socket(way->interface, 0);
    if (opened < 0)
        return false;
    way->sender = way->num_senders++;
    way->senders[way->sender] = opened;
    return sendmsg(opened, &message, MSG_DONTWAIT) >= 0;
}

static void release(struct nalb_line *line)
{
    for (uint64_t now; line->num_waiting; ) {
        now = now_ns(CLOCK_MONOTONIC);
        if (line->heap[0]->due_ns > now + LOOK_NS / 2)
            return;
        struct packet *packet = pop(line);
        line->counters.refused += !is_sent(&line->ways[packet->way], packet);
        uint64_t late_ns = now > packet->due_ns ? now - packet->due_ns : 0;
        line->counters.late += late_ns > LATE_NS;
        if (late_ns > line->counters.worst_late_ns)
            line->counters.worst_late_ns = late_ns;
        line->counters.waiting_bytes -= packet->frame_bytes;
        free(packet);
    }
}

/* Waits until a packet comes or is due; returns the number of events, or -1 with errno. */
static int wait_for_packets(struct nalb_line *line, int all, int timer, struct epoll_event *events)
{
    const struct timespec look = {0, LOOK_NS};
    clock_nanosleep(CLOCK_MONOTONIC, 0, &look, NULL);
    int count = epoll_wait(all, events, EVENTS, 0);
    uint64_t due = line->num_waiting ? line->heap[0]->due_ns : 0, now = now_ns(CLOCK_MONOTONIC);
    if (count != 0 || (due && due <= now + LOOK_NS / 2))
        return count;
    struct itimerspec when = {.it_value = {(time_t)(due / NS_PER_S), (long)(due % NS_PER_S)}}; /* 0: no timer */
    if (timerfd_settime(timer, TFD_TIMER_ABSTIME, &when, NULL) < 0)
        return -1;
    return epoll_wait(all, events, EVENTS, -1);
}

/* Gives the thread a real-time priority if it may have one, else the best nice value. Counters say which, and if it sufficed. */
static void hurry(struct nalb_line *line)
{
    struct sched_param priority = {.sched_priority = 1};
    line->counters.is_realtime = pthread_setschedparam(pthread_self(), SCHED_FIFO, &priority) == 0;
    if (!line->counters.is_realtime)
        setpriority(PRIO_PROCESS, 0, NICE); /* 0: this thread */
    prctl(PR_SET_TIMERSLACK, 1);
}

int nalb_line_run(struct nalb_line *line)
{
    int all = epoll_create1(EPOLL_CLOEXEC), timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.u32 = UINT32_MAX}; /* EPOLLET: nobody reads the timer */
    if (all < 0 || timer < 0 || epoll_ctl(all, EPOLL_CTL_ADD, timer, &event) < 0)
        return -errno;
    for (uint32_t way = 0; way < line->num_ways; way++) {
        event = (struct epoll_event){.events = EPOLLIN, .data.u32 = way};
        if (epoll_ctl(all, EPOLL_CTL_ADD, line->ways[way].source, &event) < 0)
            return -errno;
    }
    hurry(line);
    for (;;) {
        struct epoll_event events[EVENTS];
        int count = wait_for_packets(line, all, timer, events);
        if (count < 0 && errno != EINTR)
            return -errno;
        pthread_mutex_lock(&line->lock);
        for (int i = 0; i < count; i++)
            if (events[i].data.u32 != UINT32_MAX)
                fetch(line, events[i].data.u32);
        release(line);
        pthread_mutex_unlock(&line->lock);
    }
}

/* ---- set-up and questions ---- */

uint32_t nalb_line_abi(void)
{
    return NALB_DELAY_LINE_ABI;
}

struct nalb_line *nalb_line_new(uint32_t num_links)
{
    struct nalb_line *line = calloc(1, sizeof *line);
    if (!line)
        return NULL;
    mallopt(M_MMAP_THRESHOLD, 4 * FRAME_BYTES); /* malloc takes bunches from the heap, */
    mallopt(M_TRIM_THRESHOLD, 1 << 28);         /* and does not give it back between two */
    pthread_mutexattr_t kind; /* a thread that asks must not keep the real-time thread waiting */
    pthread_mutexattr_init(&kind);
    pthread_mutexattr_setprotocol(&kind, PTHREAD_PRIO_INHERIT);
    pthread_mutex_init(&line->lock, &kind);
    line->num_ways = 2 * num_links;
    line->ways = calloc(line->num_ways, sizeof *line->ways);
    line->frames = malloc((size_t)BATCH * FRAME_BYTES);
    bool is_complete = line->ways && line->frames;
    for (uint32_t way = 0; is_complete && way < line->num_ways; way++) {
        line->ways[way].rules = calloc(1, sizeof *line->ways[way].rules);
        line->ways[way].num_rules = 1;
        is_complete = line->ways[way].rules != NULL;
    }
    return is_complete ? line : NULL; /* if it is not, the process ends */
}

/* Sets a socket's buffer by the option for root (`forced`), or else by the one for everybody. Returns 0 or -1. */
static int set_bytes(int opened, int forced, int option, int bytes)
{
    return setsockopt(opened, SOL_SOCKET, forced, &bytes, sizeof bytes) == 0
               ? 0
               : setsockopt(opened, SOL_SOCKET, option, &bytes, sizeof bytes);
}

/* Opens a packet socket on an interface; with protocol 0 it only sends. Returns it, or -errno. */
static int open_socket(int interface, uint16_t protocol)
{
    int on = 1;
    struct sockaddr_ll address = {.sll_family = AF_PACKET, .sll_protocol = htons(protocol), .sll_ifindex = interface};
    int opened = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0); /* nothing comes in before it is bound */
    if (opened < 0)
        return -errno;
    if (setsockopt(opened, SOL_PACKET, PACKET_VNET_HDR, &on, sizeof on) < 0 ||
        setsockopt(opened, SOL_PACKET, PACKET_IGNORE_OUTGOING, &on, sizeof on) < 0 ||
        setsockopt(opened, SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof on) < 0 ||
        set_bytes(opened, SO_RCVBUFFORCE, SO_RCVBUF, QUEUE_BYTES) < 0 ||
        set_bytes(opened, SO_SNDBUFFORCE, SO_SNDBUF, UNSENT_BYTES) < 0 ||
        bind(opened, (struct sockaddr *)&address, sizeof address) < 0) {
        int failed = -errno;
        close(opened);
        return failed;
    }
    return opened;
}

int nalb_line_join(struct nalb_line *line, uint32_t link, const char *first, const char *second, uint64_t seed,
                   uint64_t seed_back)
{
    if (2 * (uint64_t)link >= line->num_ways)
        return -EINVAL;
    int indices[2] = {(int)if_nametoindex(first), (int)if_nametoindex(second)}, sockets[2];
    for (int end = 0; end < 2; end++) {
        if (!indices[end])
            return -ENODEV;
        if ((sockets[end] = open_socket(indices[end], ETH_P_ALL)) < 0)
            return sockets[end];
    }
    for (int number = 0; number < 2; number++) {
        struct way *way = &line->ways[2 * link + number];
        way->source = sockets[number];
        way->interface = indices[!number];
        way->senders[0] = sockets[!number];
        way->num_senders = 1;
        way->seed = number ? seed_back : seed;
    }
    return 0;
}

int nalb_line_set(struct nalb_line *line, uint32_t number, uint32_t destination, const struct nalb_impairment *impairment)
{
    int failed = 0;
    if (number >= line->num_ways || impairment->jitter_ns > impairment->delay_ns)
        return -EINVAL;
    pthread_mutex_lock(&line->lock);
    struct way *way = &line->ways[number];
    uint32_t place = 0;
    if (destination)
        for (place = 1; place < way->num_rules && way->rules[place].destination != destination; place++)
            ;
    if (place == way->num_rules) {
        struct rule *rules = realloc(way->rules, (place + 1) * sizeof *rules);
        if (rules) {
            way->rules = rules;
            way->num_rules++;
            rules[place] = (struct rule){destination, *impairment, rules[0].latest_due_ns};
        } else
            failed = -ENOMEM;
    }
    if (!failed)
        way->rules[place].impairment = *impairment;
    pthread_mutex_unlock(&line->lock);
    return failed;
}

int nalb_line_counters(struct nalb_line *line, struct nalb_line_counters *counters)
{
    int failed = 0;
    pthread_mutex_lock(&line->lock);
    for (uint32_t way = 0; way < line->num_ways && !failed; way++) {
        struct tpacket_stats since; /* reading the statistics sets them to 0 */
        socklen_t size = sizeof since;
        if (getsockopt(line->ways[way].source, SOL_PACKET, PACKET_STATISTICS, &since, &size) < 0)
            failed = -errno;
        else
            line->counters.overrun += since.tp_drops;
    }
    *counters = line->counters;
    pthread_mutex_unlock(&line->lock);
    return failed;
}
