/* Attempts on the network and on System V and POSIX message passing. What must not be heard is the
 * mark, which `serve` (attack_bait.c) sends to everybody. */
#define _GNU_SOURCE
#include "attack.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_packet.h>
#include <mqueue.h>
#include <net/if.h>
#include <net/route.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { WAIT_MS = 2000 };

static _Noreturn void hear(int fd, const char *mark)
{
	struct pollfd wait = { .fd = fd, .events = POLLIN };
	char data[4096];

	if (poll(&wait, 1, WAIT_MS) <= 0)
		held("nothing answers");
	ssize_t size = recv(fd, data, sizeof data, 0);
	if (size < 0)
		refused("recv");
	if (!contains(data, (size_t)size, mark))
		held("somebody else answers");
	won("the mark was sent to us");
}

static socklen_t target(const char *address, const char *port, struct sockaddr_storage *out)
{
	struct sockaddr_in *four = (void *)out;
	struct sockaddr_in6 *six = (void *)out;

	memset(out, 0, sizeof *out);
	if (strchr(address, ':')) {
		six->sin6_family = AF_INET6;
		six->sin6_port = htons((uint16_t)number(port));
		inet_pton(AF_INET6, address, &six->sin6_addr);
		return sizeof *six;
	}
	four->sin_family = AF_INET;
	four->sin_port = htons((uint16_t)number(port));
	inet_pton(AF_INET, address, &four->sin_addr);
	return sizeof *four;
}

static _Noreturn void talk(int type, char **a)
{
	struct sockaddr_storage to;
	socklen_t size = target(a[0], a[1], &to);
	int fd = socket(to.ss_family, type | SOCK_CLOEXEC, 0);

	if (fd < 0)
		refused("socket");
	if (connect(fd, (struct sockaddr *)&to, size) < 0)
		refused("connect");
	if (type == SOCK_DGRAM && send(fd, "?", 1, 0) < 0)
		refused("send");
	hear(fd, a[2]);
}

static void tcp(char **a) /* address, port, mark */
{
	talk(SOCK_STREAM, a);
}

static void udp(char **a) /* address, port, mark */
{
	talk(SOCK_DGRAM, a);
}

static int local(const char *name, bool abstract)
{
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(name) + 1);

	if (fd < 0)
		refused("socket");
	snprintf(to.sun_path + abstract, sizeof to.sun_path - 1, "%s", name);
	if (connect(fd, (struct sockaddr *)&to, size) < 0)
		refused("connect");
	return fd;
}

static void abstract_socket(char **a) /* name, mark */
{
	hear(local(a[0], true), a[1]);
}

static void path_socket(char **a) /* path */
{
	verdict("connect", local(a[0], false));
}

/* One HTTP request, word by word in a file; won if the answer holds `expected`. */
static void request(char **a) /* socket, file, expected */
{
	static char text[65536], answer[262144];
	int fd = local(a[0], false), file = open(a[1], O_RDONLY | O_CLOEXEC);
	ssize_t size = file < 0 ? -1 : read(file, text, sizeof text);
	size_t have = 0;

	if (size <= 0)
		cannot("there is no request in %s", a[1]);
	if (write(fd, text, (size_t)size) != size)
		refused("write");
	while (have < sizeof answer - 1) {
		ssize_t got = read(fd, answer + have, sizeof answer - 1 - have);

		if (got <= 0)
			break;
		have += (size_t)got;
	}
	if (have == 0)
		held("the connection was closed");
	if (contains(answer, have, a[2]))
		won("the answer holds %s", a[2]);
	char *code = strstr(answer, "\"code\":\"");
	held("%.60s", code ? code : answer);
}

static void raw_socket(char **a) /* nothing */
{
	(void)a;
	verdict("socket", socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_ICMP));
}

static void packet_socket(char **a) /* nothing */
{
	(void)a;
	verdict("socket", socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, htons(3)));
}

static void change_interface(char **a) /* address | route | down */
{
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	struct ifreq change = { .ifr_name = "lo:1" };
	struct sockaddr_in *address = (void *)&change.ifr_addr;

	if (fd < 0)
		refused("socket");
	address->sin_family = AF_INET;
	inet_pton(AF_INET, "192.0.2.77", &address->sin_addr);
	if (!strcmp(a[0], "address"))
		verdict("SIOCSIFADDR", ioctl(fd, SIOCSIFADDR, &change));
	if (!strcmp(a[0], "down")) {
		strcpy(change.ifr_name, "lo");
		change.ifr_flags = 0;
		verdict("SIOCSIFFLAGS", ioctl(fd, SIOCSIFFLAGS, &change));
	}
	char device[] = "lo";
	struct rtentry route = { .rt_flags = RTF_UP, .rt_dev = device };
	((struct sockaddr_in *)&route.rt_dst)->sin_family = AF_INET;
	((struct sockaddr_in *)&route.rt_dst)->sin_addr.s_addr = htonl(0xc6336400); /* 198.51.100.0 */
	((struct sockaddr_in *)&route.rt_genmask)->sin_family = AF_INET;
	((struct sockaddr_in *)&route.rt_genmask)->sin_addr.s_addr = htonl(0xffffff00);
	verdict("SIOCADDRT", ioctl(fd, SIOCADDRT, &route));
}

static void shared_memory(char **a) /* key, mark */
{
	int id = shmget((key_t)number(a[0]), 0, 0);

	if (id < 0)
		refused("shmget");
	const char *at = shmat(id, NULL, SHM_RDONLY);
	if (at == (void *)-1)
		refused("shmat");
	if (!contains(at, 4096, a[1]))
		held("it holds no mark");
	won("read the mark");
}

static void message_queue(char **a) /* key, mark */
{
	struct { long type; char text[128]; } message = { 0 };
	int id = msgget((key_t)number(a[0]), 0);

	if (id < 0)
		refused("msgget");
	/* MSG_COPY leaves it there for the next attempt; not every kernel has it */
	ssize_t size = msgrcv(id, &message, sizeof message.text, 0, IPC_NOWAIT | MSG_COPY);
	if (size < 0 && errno == ENOSYS)
		size = msgrcv(id, &message, sizeof message.text, 0, IPC_NOWAIT);
	if (size < 0)
		refused("msgrcv");
	if (!contains(message.text, (size_t)size, a[1]))
		held("it holds no mark");
	won("received the mark");
}

static void posix_queue(char **a) /* name */
{
	verdict("mq_open", mq_open(a[0], O_RDONLY));
}

const struct attack network_attacks[] = {
	{ "tcp", 3, tcp },
	{ "udp", 3, udp },
	{ "abstract", 2, abstract_socket },
	{ "connect", 1, path_socket },
	{ "request", 3, request },
	{ "raw-socket", 0, raw_socket },
	{ "packet-socket", 0, packet_socket },
	{ "interface", 1, change_interface },
	{ "shared-memory", 2, shared_memory },
	{ "message-queue", 2, message_queue },
	{ "posix-queue", 1, posix_queue },
	{ NULL, 0, NULL },
};
