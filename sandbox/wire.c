#define _GNU_SOURCE
#include "wire.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

void wire_close(struct wire_fds *fds)
{
	while (fds->count > 0)
		close(fds->fd[--fds->count]);
}

/* Keep what fits; close the rest at once. False if something had to be closed. */
static bool keep(struct wire_fds *fds, const struct cmsghdr *part)
{
	const unsigned char *data = CMSG_DATA(part);
	size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
	bool all = true;

	for (size_t i = 0; i < count; i++) {
		int fd;

		memcpy(&fd, data + i * sizeof fd, sizeof fd);
		if (fds->count < WIRE_FDS_MAX) {
			fds->fd[fds->count++] = fd;
		} else {
			close(fd);
			all = false;
		}
	}
	return all;
}

void wire_await(int sock)
{
	struct pollfd ready = { .fd = sock, .events = POLLIN };

	while (poll(&ready, 1, -1) < 0 && errno == EINTR)
		;
}

ssize_t wire_receive(int sock, void *buffer, size_t capacity, int flags, struct wire_fds *fds)
{
	/* Room for credentials too: they come unasked where the sender's end has SO_PASSCRED. */
	union {
		char bytes[CMSG_SPACE(sizeof(int) * WIRE_FDS_MAX) + CMSG_SPACE(sizeof(struct ucred))];
		struct cmsghdr align;
	} control;
	struct iovec part = { .iov_base = buffer, .iov_len = capacity };
	struct msghdr message = {
		.msg_iov = &part,
		.msg_iovlen = 1,
		.msg_control = control.bytes,
		.msg_controllen = sizeof control.bytes,
	};
	ssize_t size;

	fds->count = 0;
	do {
		size = recvmsg(sock, &message, flags | MSG_CMSG_CLOEXEC);
	} while (size < 0 && errno == EINTR);
	if (size < 0)
		return -1;

	bool whole = !(message.msg_flags & (MSG_TRUNC | MSG_CTRUNC));

	for (struct cmsghdr *c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c))
		if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS && !keep(fds, c))
			whole = false;
	if (whole && size > 0)
		return size;
	wire_close(fds);
	if (size == 0)
		return 0;
	errno = EBADMSG;
	return -1;
}

int wire_check_command(const void *record, size_t size, unsigned fds,
		       struct wire_command *command)
{
	struct wire_command c;

	if (size != sizeof c)
		return EBADMSG;
	memcpy(&c, record, sizeof c);
	if (c.magic != WIRE_MAGIC || c.zero != 0 || (c.type == WIRE_ADOPT ? c.pid <= 1 : c.pid != 0))
		return EBADMSG;
	switch (c.type) {
	case WIRE_PREFORK:
	case WIRE_ADOPT:
		if (fds < 1 || fds > 1 + WIRE_KEEP_MAX)
			return EBADMSG;
		break;
	case WIRE_FORK:
		if (fds != 3)
			return EBADMSG;
		break;
	case WIRE_DONE:
	case WIRE_TAKE:
		if (fds != 0)
			return EBADMSG;
		break;
	default:
		return EBADMSG;
	}
	*command = c;
	return 0;
}

int wire_check_exec(const void *record, size_t size, unsigned fds, struct wire_exec *exec)
{
	struct wire_exec e;

	if (size < sizeof e)
		return EBADMSG;
	memcpy(&e, record, sizeof e);
	if (e.magic != WIRE_MAGIC || e.type != WIRE_EXEC ||
	    (e.flags & ~(uint32_t)(WIRE_IN_MEMFD | WIRE_HOLD)))
		return EBADMSG;
	if (e.pathc < 1 || e.pathc > WIRE_PATHS_MAX || e.argc < 1 || e.argc > WIRE_STRINGS_MAX ||
	    e.envc > WIRE_STRINGS_MAX)
		return EBADMSG;
	if (e.flags & WIRE_IN_MEMFD) {
		if (fds != 4 || size != sizeof e || e.length > WIRE_BLOCK_MAX)
			return EBADMSG;
	} else if (fds != 3 || e.length > WIRE_INLINE_MAX || size - sizeof e != e.length) {
		return EBADMSG;
	}
	*exec = e;
	return 0;
}

/* The next string of [*at, end), or NULL if no NUL ends it. */
static char *next(char **at, const char *end)
{
	char *string = *at;
	char *nul = string < end ? memchr(string, 0, (size_t)(end - string)) : NULL;

	if (nul)
		*at = nul + 1;
	return nul ? string : NULL;
}

static bool absolute(const char *path)
{
	return path[0] == '/';
}

static bool present(const char *path)
{
	return path[0] != 0;
}

static bool anything(const char *argument)
{
	(void)argument;
	return true;
}

static bool named(const char *entry)
{
	return entry[0] != '=' && strchr(entry, '=') != NULL;
}

/* Fill `count` slots and a NULL; gives the slot after it, or NULL when a string isn't right. */
static char **fill(char **slot, uint32_t count, char **at, const char *end,
		   bool (*right)(const char *))
{
	while (count-- > 0) {
		*slot = next(at, end);
		if (!*slot || !right(*slot))
			return NULL;
		slot++;
	}
	*slot++ = NULL;
	return slot;
}

int wire_split(char *block, const struct wire_exec *exec, char **slots,
	       struct wire_program *program)
{
	char *at = block;
	const char *end = block + exec->length;
	struct wire_program p = { .cwd = next(&at, end), .paths = slots };

	if (!p.cwd || !absolute(p.cwd))
		return EBADMSG;
	p.argv = fill(p.paths, exec->pathc, &at, end, present);
	if (!p.argv)
		return EBADMSG;
	p.envp = fill(p.argv, exec->argc, &at, end, anything);
	if (!p.envp || !fill(p.envp, exec->envc, &at, end, named) || at != end)
		return EBADMSG;
	*program = p;
	return 0;
}
