/* Unit tests of the request parser. Each case says what it expects; the first wrong one aborts. */
#define _GNU_SOURCE
#include "wire.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

static int checks;

#define CHECK(condition)                                                              \
	do {                                                                          \
		checks++;                                                             \
		if (!(condition)) {                                                   \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
			exit(1);                                                      \
		}                                                                     \
	} while (0)

static struct wire_exec good_exec(void)
{
	return (struct wire_exec){
		.magic = WIRE_MAGIC, .type = WIRE_EXEC, .id = 7, .pathc = 2, .argc = 2, .envc = 1, .length = 22,
	};
}

static const char good_block[] = "/\0/a/x\0/b/x\0x\0\0A=b\0";

/* "/", "/a/x", "/b/x", "x", "", "A=b"; the literal has one NUL more */
enum { GOOD_LENGTH = 2 + 5 + 5 + 2 + 1 + 4 };

/* Splits a copy whose end is the end of its allocation, so that a read behind it is seen. */
static int split(const char *bytes, size_t length, uint32_t pathc, uint32_t argc, uint32_t envc)
{
	struct wire_exec exec = good_exec();
	char *block = malloc(length ? length : 1);
	char **slots = malloc((pathc + argc + envc + 3) * sizeof *slots);
	struct wire_program program;

	memcpy(block, bytes, length);
	exec.pathc = pathc;
	exec.argc = argc;
	exec.envc = envc;
	exec.length = length;

	int error = wire_split(length ? block : block + 1, &exec, slots, &program);

	if (!error) {
		CHECK(program.paths[pathc] == NULL && program.argv[argc] == NULL);
		CHECK(program.envp[envc] == NULL);
	}
	free(slots);
	free(block);
	return error;
}

static void test_split(void)
{
	struct wire_exec exec = good_exec();
	struct wire_program program;
	char *slots[WIRE_PATHS_MAX];
	char block[sizeof good_block];

	memcpy(block, good_block, sizeof block);
	exec.length = GOOD_LENGTH;
	CHECK(wire_split(block, &exec, slots, &program) == 0);
	CHECK(strcmp(program.cwd, "/") == 0);
	CHECK(strcmp(program.paths[0], "/a/x") == 0 && strcmp(program.paths[1], "/b/x") == 0);
	CHECK(program.paths[2] == NULL);
	CHECK(strcmp(program.argv[0], "x") == 0 && program.argv[1][0] == 0 && !program.argv[2]);
	CHECK(strcmp(program.envp[0], "A=b") == 0 && !program.envp[1]);

	CHECK(split(good_block, GOOD_LENGTH, 2, 2, 1) == 0);
	/* counts that don't fit the strings, either way */
	CHECK(split(good_block, GOOD_LENGTH, 2, 2, 2) == EBADMSG);
	CHECK(split(good_block, GOOD_LENGTH, 2, 2, 0) == EBADMSG);
	CHECK(split(good_block, GOOD_LENGTH, 1, 2, 1) == EBADMSG);
	CHECK(split(good_block, GOOD_LENGTH, 1, 3, 1) == 0);
	/* every prefix: a block that is cut is never taken */
	for (size_t length = 0; length < GOOD_LENGTH; length++)
		CHECK(split(good_block, length, 2, 2, 1) == EBADMSG);
	/* one byte more, and a last string without its NUL */
	CHECK(split(good_block, GOOD_LENGTH + 1, 2, 2, 1) == EBADMSG);
	CHECK(split("/\0p\0a\0A=b", 9, 1, 1, 1) == EBADMSG);
	CHECK(split("/\0p\0a\0A=b", 10, 1, 1, 1) == 0);
	/* what a string must look like */
	CHECK(split("w\0p\0a\0", 6, 1, 1, 0) == EBADMSG);
	CHECK(split("\0p\0a\0", 5, 1, 1, 0) == EBADMSG);
	CHECK(split("/\0\0a\0", 5, 1, 1, 0) == EBADMSG);
	CHECK(split("/\0p\0a\0A\0", 8, 1, 1, 1) == EBADMSG);
	CHECK(split("/\0p\0a\0=b\0", 9, 1, 1, 1) == EBADMSG);
	CHECK(split("/\0p\0a\0A=\0", 9, 1, 1, 1) == 0);
	CHECK(split("/\0p\0a\0A=b=c\0", 12, 1, 1, 1) == 0);
}

/* The verdict on one changed header field; inline with three descriptors. */
#define EXEC_WITH(statement, size, fds)                                  \
	({                                                               \
		struct wire_exec e = good_exec(), out;                   \
		char record[sizeof e + 22] = { 0 };                      \
		statement;                                               \
		memcpy(record, &e, sizeof e);                            \
		wire_check_exec(record, (size), (fds), &out);            \
	})

static void test_exec_header(void)
{
	enum { SIZE = sizeof(struct wire_exec) + 22, BARE = sizeof(struct wire_exec) };

	CHECK(EXEC_WITH((void)0, SIZE, 3) == 0);
	CHECK(EXEC_WITH(e.magic ^= 1, SIZE, 3) == EBADMSG);
	CHECK(EXEC_WITH(e.type = WIRE_PREFORK, SIZE, 3) == EBADMSG);
	CHECK(EXEC_WITH(e.flags = WIRE_HOLD, SIZE, 3) == 0);
	CHECK(EXEC_WITH(e.flags = 4, SIZE, 3) == EBADMSG);
	CHECK(EXEC_WITH(e.flags = 5, BARE, 4) == EBADMSG);
	for (unsigned fds = 0; fds <= WIRE_FDS_MAX; fds++)
		CHECK(EXEC_WITH((void)0, SIZE, fds) == (fds == 3 ? 0 : EBADMSG));
	for (size_t size = 0; size < SIZE; size++)
		CHECK(EXEC_WITH((void)0, size, 3) == EBADMSG);
	CHECK(EXEC_WITH(e.length = 21, SIZE, 3) == EBADMSG);
	CHECK(EXEC_WITH(e.length = 23, SIZE, 3) == EBADMSG);
	CHECK(EXEC_WITH(e.length = UINT64_MAX, SIZE, 3) == EBADMSG);
	CHECK(EXEC_WITH(e.length = UINT64_MAX - BARE + 1, BARE, 3) == EBADMSG);
	CHECK(EXEC_WITH(e.pathc = 0, SIZE, 3) == EBADMSG);
	CHECK(EXEC_WITH(e.pathc = WIRE_PATHS_MAX, SIZE, 3) == 0);
	CHECK(EXEC_WITH(e.pathc = WIRE_PATHS_MAX + 1, SIZE, 3) == EBADMSG);
	CHECK(EXEC_WITH(e.argc = 0, SIZE, 3) == EBADMSG);
	CHECK(EXEC_WITH(e.argc = WIRE_STRINGS_MAX, SIZE, 3) == 0);
	CHECK(EXEC_WITH(e.argc = WIRE_STRINGS_MAX + 1, SIZE, 3) == EBADMSG);
	CHECK(EXEC_WITH(e.argc = UINT32_MAX, SIZE, 3) == EBADMSG);
	CHECK(EXEC_WITH(e.envc = 0, SIZE, 3) == 0);
	CHECK(EXEC_WITH(e.envc = WIRE_STRINGS_MAX + 1, SIZE, 3) == EBADMSG);
	/* in a memfd: no byte behind the header, four descriptors, the larger bound */
	CHECK(EXEC_WITH((e.flags = WIRE_IN_MEMFD, e.length = WIRE_BLOCK_MAX), BARE, 4) == 0);
	CHECK(EXEC_WITH((e.flags = WIRE_IN_MEMFD, e.length = WIRE_BLOCK_MAX + 1), BARE, 4) == EBADMSG);
	CHECK(EXEC_WITH(e.flags = WIRE_IN_MEMFD, BARE, 3) == EBADMSG);
	CHECK(EXEC_WITH(e.flags = WIRE_IN_MEMFD, SIZE, 4) == EBADMSG);
}

static void test_command(void)
{
	struct wire_command c = { .magic = WIRE_MAGIC, .type = WIRE_PREFORK, .id = 9 }, out = { 0 };
	char longer[sizeof c + 1] = { 0 };

	CHECK(wire_check_command(&c, sizeof c, 1, &out) == 0 && out.id == 9);
	CHECK(wire_check_command(&c, sizeof c, 0, &out) == EBADMSG);
	CHECK(wire_check_command(&c, sizeof c, 1 + WIRE_KEEP_MAX, &out) == 0);
	CHECK(wire_check_command(&c, sizeof c, 2 + WIRE_KEEP_MAX, &out) == EBADMSG);
	for (size_t size = 0; size < sizeof c; size++)
		CHECK(wire_check_command(&c, size, 1, &out) == EBADMSG);
	memcpy(longer, &c, sizeof c);
	CHECK(wire_check_command(longer, sizeof longer, 1, &out) == EBADMSG);
	c.type = WIRE_DONE;
	CHECK(wire_check_command(&c, sizeof c, 0, &out) == 0);
	CHECK(wire_check_command(&c, sizeof c, 1, &out) == EBADMSG);
	for (uint32_t type = 0; type < 32; type++) {
		c.type = type;
		if (type != WIRE_DONE && type != WIRE_TAKE)
			CHECK(wire_check_command(&c, sizeof c, 0, &out) == EBADMSG);
		if (type != WIRE_PREFORK)
			CHECK(wire_check_command(&c, sizeof c, 1, &out) == EBADMSG);
		if (type != WIRE_PREFORK && type != WIRE_FORK)
			CHECK(wire_check_command(&c, sizeof c, 3, &out) == EBADMSG);
	}
	/* a pid in the one that has one */
	c.type = WIRE_ADOPT;
	CHECK(wire_check_command(&c, sizeof c, 1, &out) == EBADMSG);
	c.pid = 1;
	CHECK(wire_check_command(&c, sizeof c, 1, &out) == EBADMSG);
	c.pid = 2;
	CHECK(wire_check_command(&c, sizeof c, 1, &out) == 0 && out.pid == 2);
	CHECK(wire_check_command(&c, sizeof c, 0, &out) == EBADMSG);
	CHECK(wire_check_command(&c, sizeof c, 2 + WIRE_KEEP_MAX, &out) == EBADMSG);
	c.zero = 1;
	CHECK(wire_check_command(&c, sizeof c, 1, &out) == EBADMSG);
	c.zero = 0;
	c.type = WIRE_PREFORK;
	CHECK(wire_check_command(&c, sizeof c, 1, &out) == EBADMSG);
	c.pid = 0;
	c.type = WIRE_FORK;
	CHECK(wire_check_command(&c, sizeof c, 3, &out) == 0);
	CHECK(wire_check_command(&c, sizeof c, 2, &out) == EBADMSG);
	CHECK(wire_check_command(&c, sizeof c, 4, &out) == EBADMSG);
	c.type = WIRE_DONE;
	c.magic = 0;
	CHECK(wire_check_command(&c, sizeof c, 0, &out) == EBADMSG);
}

static int open_descriptors(void)
{
	DIR *dir = opendir("/proc/self/fd");
	int count = 0;

	while (readdir(dir))
		count++;
	closedir(dir);
	return count;
}

static void send_with(int sock, const void *bytes, size_t size, unsigned fds)
{
	union {
		char bytes[CMSG_SPACE(sizeof(int) * 64)];
		struct cmsghdr align;
	} control = { 0 };
	struct iovec part = { .iov_base = (void *)bytes, .iov_len = size };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };

	if (fds) {
		message.msg_control = control.bytes;
		message.msg_controllen = CMSG_SPACE(sizeof(int) * fds);

		struct cmsghdr *c = CMSG_FIRSTHDR(&message);

		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(int) * fds);
		for (unsigned i = 0; i < fds; i++)
			memcpy(CMSG_DATA(c) + i * sizeof(int), &sock, sizeof sock);
	}
	CHECK(sendmsg(sock, &message, MSG_DONTWAIT) == (ssize_t)size);
}

static void test_receive(void)
{
	int pair[2], one = 1;
	char buffer[16];
	struct wire_fds fds;

	CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);

	int before = open_descriptors();

	CHECK(wire_receive(pair[1], buffer, sizeof buffer, MSG_DONTWAIT, &fds) == -1 && errno == EAGAIN);
	for (unsigned count = 0; count <= 64; count = count < 20 ? count + 1 : count * 2) {
		send_with(pair[0], "hello", 5, count);

		ssize_t size = wire_receive(pair[1], buffer, sizeof buffer, MSG_DONTWAIT, &fds);

		if (count <= WIRE_FDS_MAX) {
			CHECK(size == 5 && fds.count == count);
			for (unsigned i = 0; i < count; i++)
				CHECK(fcntl(fds.fd[i], F_GETFD) == FD_CLOEXEC);
			CHECK(open_descriptors() == before + (int)count);
			wire_close(&fds);
		} else {
			CHECK(size == -1 && errno == EBADMSG);
		}
		CHECK(fds.count == 0 && open_descriptors() == before);
	}
	/* longer than the buffer, and empty, each with descriptors */
	send_with(pair[0], "0123456789abcdefg", 17, 3);
	CHECK(wire_receive(pair[1], buffer, sizeof buffer, 0, &fds) == -1 && errno == EBADMSG);
	CHECK(open_descriptors() == before);
	send_with(pair[0], "", 0, 2);
	CHECK(wire_receive(pair[1], buffer, sizeof buffer, 0, &fds) == 0 && fds.count == 0);
	CHECK(open_descriptors() == before);
	/* credentials don't take the descriptors' room */
	CHECK(setsockopt(pair[1], SOL_SOCKET, SO_PASSCRED, &one, sizeof one) == 0);
	send_with(pair[0], "hello", 5, WIRE_FDS_MAX);
	CHECK(wire_receive(pair[1], buffer, sizeof buffer, 0, &fds) == 5 && fds.count == WIRE_FDS_MAX);
	wire_close(&fds);
	CHECK(open_descriptors() == before);
	/* no descriptor left for the last of them: what came is closed, the record refused */
	struct rlimit limit, tight;
	int lowest = dup(pair[0]);

	close(lowest);
	CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
	tight = limit;
	tight.rlim_cur = (rlim_t)lowest + 2;
	send_with(pair[0], "hello", 5, 3);
	CHECK(setrlimit(RLIMIT_NOFILE, &tight) == 0);
	CHECK(wire_receive(pair[1], buffer, sizeof buffer, 0, &fds) == -1 && errno == EBADMSG);
	CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
	CHECK(open_descriptors() == before);
	close(pair[0]);
	CHECK(wire_receive(pair[1], buffer, sizeof buffer, 0, &fds) == 0);
	close(pair[1]);
}

int main(void)
{
	test_split();
	test_exec_header();
	test_command();
	test_receive();
	printf("test_wire: %d checks\n", checks);
	return 0;
}
