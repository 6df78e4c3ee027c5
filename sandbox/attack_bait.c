/*
 * Things to aim at, outside of the attacked sandbox. Each says "ready" and what else is to be known
 * in one line on stdout, and ends when its standard input does.
 *
 *     bait process MARK           a process of whoever starts it, with the mark in its arguments and
 *                                 in its memory; tells the address
 *     bait host MARK              servers on free loopback ports, in the namespaces it is started in
 *     bait outside MARK           the same in a network namespace of its own that has addresses of
 *                                 the outside world, so that no real network is needed
 *     bait neighbour MARK         the same inside another lease's sandbox; stays in the background
 *     bait handle PATH            tells the file's handle, see name_to_handle_at(2), and ends
 *     bait flood MEBIBYTES        writes so much to stdout
 *     bait survive FILE MS        leaves a process in a session of its own that writes to FILE for
 *                                 ever, and itself stays for MS milliseconds
 *     bait wait                   waits for the end of its standard input
 */
#define _GNU_SOURCE
#include "attack.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/ipv6.h>
#include <mqueue.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

static void need(bool fine, const char *what)
{
	if (!fine) {
		fprintf(stderr, "attack bait: %s: %s\n", what, strerror(errno));
		exit(1);
	}
}

static _Noreturn void until_stdin_ends(void)
{
	char byte;

	while (read(0, &byte, 1) > 0)
		;
	exit(0);
}

static int listening(int family, int type, const char *address, int *port)
{
	struct sockaddr_storage at = { .ss_family = (sa_family_t)family };
	struct sockaddr_in *four = (void *)&at;
	struct sockaddr_in6 *six = (void *)&at;
	socklen_t size = family == AF_INET ? sizeof *four : sizeof *six;
	int fd = socket(family, type | SOCK_CLOEXEC, 0), yes = 1;

	need(fd >= 0, "socket");
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
	if (family == AF_INET)
		four->sin_port = htons((uint16_t)*port), inet_pton(family, address, &four->sin_addr);
	else {
		six->sin6_port = htons((uint16_t)*port), inet_pton(family, address, &six->sin6_addr);
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &yes, sizeof yes);
	}
	need(bind(fd, (struct sockaddr *)&at, size) == 0, "bind");
	if (type == SOCK_STREAM)
		need(listen(fd, 64) == 0, "listen");
	need(getsockname(fd, (struct sockaddr *)&at, &size) == 0, "getsockname");
	*port = ntohs(family == AF_INET ? four->sin_port : six->sin6_port);
	return fd;
}

static int listening_abstract(const char *name)
{
	struct sockaddr_un at = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	snprintf(at.sun_path + 1, sizeof at.sun_path - 1, "%s", name);
	need(fd >= 0 && bind(fd, (struct sockaddr *)&at,
			     (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(name) + 1)) == 0 &&
	     listen(fd, 64) == 0, "abstract socket");
	return fd;
}

/* The line on stdout is "ready TCP UDP TCP6": ports. A host without IPv6 has the port 0. */
void serve(const char *mark, const char *abstract, bool fixed_ports)
{
	const char *four = fixed_ports ? "0.0.0.0" : "127.0.0.1";
	const char *six = fixed_ports ? "::" : "::1";
	int ports[3] = { fixed_ports ? 80 : 0, fixed_ports ? 53 : 0, fixed_ports ? 80 : 0 };
	struct pollfd wait[5] = {
		{ .fd = 0, .events = POLLIN },
		{ .fd = listening(AF_INET, SOCK_STREAM, four, &ports[0]), .events = POLLIN },
		{ .fd = listening(AF_INET, SOCK_DGRAM, four, &ports[1]), .events = POLLIN },
		{ .fd = listening(AF_INET6, SOCK_STREAM, six, &ports[2]), .events = POLLIN },
		{ .fd = listening_abstract(abstract), .events = POLLIN },
	};

	printf("ready %d %d %d\n", ports[0], ports[1], ports[2]);
	fflush(stdout);
	while (poll(wait, 5, -1) > 0) {
		if (wait[0].revents) {
			char byte;

			if (read(0, &byte, 1) <= 0)
				break;
		}
		for (int i = 1; i < 5; i++) {
			struct sockaddr_storage from;
			socklen_t size = sizeof from;
			char byte;

			if (!wait[i].revents)
				continue;
			if (i == 2) {
				if (recvfrom(wait[i].fd, &byte, 1, 0, (struct sockaddr *)&from, &size) >= 0)
					sendto(wait[i].fd, mark, strlen(mark), 0, (struct sockaddr *)&from, size);
				continue;
			}
			int fd = accept4(wait[i].fd, NULL, NULL, SOCK_CLOEXEC);
			if (fd >= 0 && send(fd, mark, strlen(mark), MSG_NOSIGNAL) >= 0)
				shutdown(fd, SHUT_WR);
			close(fd);
		}
	}
	exit(0);
}

/* Segments and queues outlive their maker, so they are removed by the clean-up in `host`. */
static int shm_id = -1, msg_id = -1;
static char queue_name[100];

static void remove_ipc(void)
{
	if (shm_id >= 0)
		shmctl(shm_id, IPC_RMID, NULL);
	if (msg_id >= 0)
		msgctl(msg_id, IPC_RMID, NULL);
	if (*queue_name)
		mq_unlink(queue_name);
}

static void make_ipc(const char *mark, key_t key)
{
	struct { long type; char text[64]; } message = { .type = 1 };

	atexit(remove_ipc);
	snprintf(queue_name, sizeof queue_name, "/%s", mark);
	snprintf(message.text, sizeof message.text, "%s", mark);
	shm_id = shmget(key, 4096, IPC_CREAT | IPC_EXCL | 0666);
	need(shm_id >= 0, "shmget");
	char *at = shmat(shm_id, NULL, 0);
	need(at != (void *)-1, "shmat");
	strcpy(at, mark);
	msg_id = msgget(key, IPC_CREAT | IPC_EXCL | 0666);
	need(msg_id >= 0 && msgsnd(msg_id, &message, sizeof message.text, 0) == 0, "msgget");
	umask(0);
	need(mq_open(queue_name, O_RDWR | O_CREAT | O_EXCL, 0666, NULL) >= 0, "mq_open");
}

static void add_address(const char *name, const char *text)
{
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	struct ifreq change = { 0 };
	struct sockaddr_in *address = (void *)&change.ifr_addr;

	snprintf(change.ifr_name, sizeof change.ifr_name, "%s", name);
	address->sin_family = AF_INET;
	inet_pton(AF_INET, text, &address->sin_addr);
	need(ioctl(fd, SIOCSIFADDR, &change) == 0, "SIOCSIFADDR");
	inet_pton(AF_INET, "255.255.255.255", &address->sin_addr);
	need(ioctl(fd, SIOCSIFNETMASK, &change) == 0, "SIOCSIFNETMASK");
	close(fd);
}

static void make_outside(void)
{
	struct ifreq up = { .ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING };
	struct { struct in6_addr address; uint32_t prefix; int interface; } six = { .prefix = 128,
										    .interface = 1 };
	int fd, fd6;

	need(unshare(CLONE_NEWNET) == 0, "unshare");
	fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	fd6 = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	need(ioctl(fd, SIOCSIFFLAGS, &up) == 0, "SIOCSIFFLAGS");
	add_address("lo:1", "192.0.2.1");
	add_address("lo:2", "169.254.169.254");
	add_address("lo:3", "198.51.100.53");
	inet_pton(AF_INET6, "2001:db8::1", &six.address);
	need(ioctl(fd6, SIOCSIFADDR, &six) == 0, "SIOCSIFADDR");
	close(fd), close(fd6);
}

static int tell_handle(const char *path)
{
	struct { unsigned bytes; int type; unsigned char data[128]; } handle = { .bytes = 128 };
	int mount_id;

	need(syscall(SYS_name_to_handle_at, AT_FDCWD, path, &handle, &mount_id, 0) == 0, path);
	printf("%d ", handle.type);
	for (unsigned i = 0; i < handle.bytes; i++)
		printf("%02x", handle.data[i]);
	printf("\n");
	return 0;
}

static int flood(long mebibytes)
{
	static char block[1 << 20];

	memset(block, 'x', sizeof block);
	while (mebibytes-- > 0)
		for (size_t done = 0; done < sizeof block;) {
			ssize_t put = write(1, block + done, sizeof block - done);

			need(put > 0, "write");
			done += (size_t)put;
		}
	return 0;
}

static int survive(const char *file, long milliseconds)
{
	struct timespec beat = { .tv_nsec = 5000000 };
	struct timespec stay = { milliseconds / 1000, milliseconds % 1000 * 1000000 };

	for (int sig = 1; sig < 32; sig++)
		signal(sig, SIG_IGN);
	if (fork() == 0) {
		setsid();
		if (fork() == 0) {
			int fd = open(file, O_WRONLY | O_CREAT | O_APPEND, 0644);

			while (write(fd, ".", 1) == 1)
				nanosleep(&beat, NULL);
		}
		_exit(0);
	}
	nanosleep(&stay, NULL);
	return 0;
}

int bait(int argc, char **argv)
{
	const char *kind = argv[0], *mark = argc > 1 ? argv[1] : "";

	if (!strcmp(kind, "wait"))
		until_stdin_ends();
	if (!strcmp(kind, "process") && argc == 2) {
		char *secret = strdup(mark);

		printf("ready %p\n", (void *)secret);
		fflush(stdout);
		until_stdin_ends();
	}
	if (!strcmp(kind, "host") && argc == 3) {
		make_ipc(mark, (key_t)number(argv[2]));
		serve(mark, mark, false);
	}
	if (!strcmp(kind, "outside") && argc == 2) {
		make_outside();
		serve(mark, mark, true);
	}
	if (!strcmp(kind, "neighbour") && argc == 3) {
		make_ipc(mark, (key_t)number(argv[2]));
		serve(mark, mark, false);
	}
	if (!strcmp(kind, "handle") && argc == 2)
		return tell_handle(argv[1]);
	if (!strcmp(kind, "flood") && argc == 2)
		return flood(number(argv[1]));
	if (!strcmp(kind, "survive") && argc == 3)
		return survive(argv[1], number(argv[2]));
	fprintf(stderr, "attack bait: unknown\n");
	return 2;
}
