/*
 * guest: pid 1 of a sandbox. Reaps, and starts commands when the host asks.
 *
 *     guest FD [--persist]
 *
 * FD is a listening AF_UNIX SOCK_SEQPACKET socket; the host connects to it from outside, where
 * alone its path exists. Without --persist the first peer is the only one and its end is the
 * guest's: the kernel then ends the pid namespace, hence everything in it. With --persist the next
 * peer is awaited, which takes over the calls of the last one. wire.h has the messages.
 *
 * The host asks for spares ahead of time (PREFORK), each with a socket of its own. A spare is a
 * forked child that says READY (so that the kernel tells the host its real pid) and waits, without
 * running anything, for the one EXEC that makes it a command, or a shell that waits for its command
 * (hold.c). The guest keeps a duplicate of that socket to report the end of the child, so all words
 * of one call are on the call's socket.
 *
 * For a host that dies the guest keeps what comes with a PREFORK: the host's end of that socket, the
 * read ends of the command's pipes. Nobody reads them then, so a command that prints much waits, and
 * its exit waits on the socket. The next host takes them (TAKE) one answer for each question, so that
 * the guest never has more to say than it can; it keeps them until DONE, for that host may die too.
 *
 * The guest holds no secret, decides nothing and opens nothing but /dev/null. What defends it from
 * the commands, which may have its uid: no dumps (so no ptrace, pidfd_getfd or /proc/1/{mem,fd}),
 * every signal blocked at its default (so the kernel drops what would kill pid 1), no heap, no
 * wait for anybody, and nothing read from a command. Exit status: 0 the peer is gone, 1 a resource
 * failed, 2 wrong use; a spare that never started a command exits with 125, or 127 after EXECFAIL.
 */
#define _GNU_SOURCE
#include "signals.h"
#include "wire.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
	CALLS_MAX = 512, /* times seven descriptors: below the limit of 4,096 */
	SPARE_FD = 3, /* the call's socket in a spare: the lowest after stdio */
	SPARE_UNUSED = 125,
	SPARE_FAILED = 127,
};

static struct call {
	bool taken;
	pid_t pid;            /* 0: the child has ended */
	int sock;             /* until then */
	uint64_t id;
	struct wire_fds kept; /* until DONE */
} calls[CALLS_MAX];

/* Used by a spare alone. Pages that nothing touches cost nothing. */
static char request[sizeof(struct wire_exec) + WIRE_INLINE_MAX];
static char block[WIRE_BLOCK_MAX];
static char *slots[WIRE_SLOTS];

/* Never waits: a peer that doesn't read loses words, and the guest nothing. */
static void say(int sock, const struct wire_report *report)
{
	while (send(sock, report, sizeof *report, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 && errno == EINTR)
		;
}

static void tell(int sock, uint32_t type, uint64_t id, int32_t value, uint32_t where)
{
	struct wire_report report = {
		.magic = WIRE_MAGIC, .type = type, .id = id, .value = value, .where = where,
	};

	say(sock, &report);
}

static _Noreturn void refuse(uint64_t id, int error, uint32_t where)
{
	tell(SPARE_FD, WIRE_EXECFAIL, id, error, where);
	_exit(where == WIRE_AT_REQUEST ? SPARE_UNUSED : SPARE_FAILED);
}

/* The string block of a checked request: behind its header, or read from the memfd. */
static char *load(const struct wire_exec *exec, const struct wire_fds *fds)
{
	struct stat about;
	size_t have = 0;

	if (!(exec->flags & WIRE_IN_MEMFD))
		return request + sizeof *exec;
	/* read, not mapped: a map of a file that shrinks ends in SIGBUS */
	if (fstat(fds->fd[3], &about) < 0 || !S_ISREG(about.st_mode) ||
	    (uint64_t)about.st_size != exec->length)
		return NULL;
	while (have < exec->length) {
		ssize_t n = pread(fds->fd[3], block + have, exec->length - have, (off_t)have);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return NULL;
		have += (size_t)n;
	}
	return block;
}

/*
 * A directory that can't be named from the root is outside of it: a leaked directory descriptor
 * reached through /proc/self/fd (CVE-2024-21626). The system call says "(unreachable)".
 */
static int enter(const char *cwd)
{
	static char name[4096];

	if (chdir(cwd) < 0)
		return errno;
	if (syscall(SYS_getcwd, name, sizeof name) < 0)
		return errno;
	return name[0] == '/' ? 0 : ENOENT;
}

/* The first path that can be executed becomes the process. Gives why none could. */
static int become(const struct wire_program *program)
{
	int error = ENOENT;

	for (char **path = program->paths; *path; path++) {
		execve(*path, program->argv, program->envp);
		if (errno == EACCES)
			error = EACCES;
		else if (errno != ENOENT && errno != ENOTDIR)
			return errno;
	}
	return error;
}

static _Noreturn void spare(int sock, uint64_t id)
{
	struct wire_fds fds;
	struct wire_exec exec;
	struct wire_program program;
	char *strings;
	int error;

	/* Nothing of the guest or of another call stays open: not even a waiting spare may keep the
	 * host from seeing the end of another call's socket. */
	if ((sock != SPARE_FD && dup3(sock, SPARE_FD, O_CLOEXEC) < 0) ||
	    close_range(SPARE_FD + 1, ~0U, 0) < 0)
		_exit(SPARE_UNUSED);
	setsid();
	tell(SPARE_FD, WIRE_READY, id, getpid(), 0);

	wire_await(SPARE_FD);
	ssize_t size = wire_receive(SPARE_FD, request, sizeof request, 0, &fds);

	if (size == 0) {
		/* the status could be a command's own */
		tell(SPARE_FD, WIRE_UNUSED, id, 0, 0);
		_exit(SPARE_UNUSED);
	}
	error = size < 0 ? errno : wire_check_exec(request, (size_t)size, fds.count, &exec);
	if (!error && exec.id != id)
		error = EBADMSG;
	if (error)
		refuse(id, error, WIRE_AT_REQUEST);
	strings = load(&exec, &fds);
	error = strings ? wire_split(strings, &exec, slots, &program) : EBADMSG;
	if (error)
		refuse(id, error, WIRE_AT_REQUEST);

	/* 0 to 3 are taken, so no source is overwritten before it is used. */
	for (int i = 0; i < 3; i++)
		if (dup2(fds.fd[i], i) < 0)
			refuse(id, errno, WIRE_AT_DESCRIPTORS);
	error = enter(program.cwd);
	if (error)
		refuse(id, error, WIRE_AT_CWD);
	if (close_range(3, ~0U, CLOSE_RANGE_CLOEXEC) < 0)
		refuse(id, errno, WIRE_AT_DESCRIPTORS);
	if (exec.flags & WIRE_HOLD) {
		/* hold.so waits on the call's socket, and sets the signals right in its time. */
		if (fcntl(SPARE_FD, F_SETFD, 0) < 0)
			refuse(id, errno, WIRE_AT_DESCRIPTORS);
	} else {
		reset_signals();
	}
	refuse(id, become(&program), WIRE_AT_EXEC);
}

/*
 * The end of a call's child. A request that it never read is taken back first: from then on the
 * host's send fails, so "unread" is exact, and it is evidence that nothing ran.
 */
static void report_exit(struct call *call, int status, const struct rusage *usage)
{
	struct wire_report report = {
		.magic = WIRE_MAGIC,
		.type = WIRE_EXIT,
		.id = call->id,
		.value = status,
		.utime_us = (uint64_t)usage->ru_utime.tv_sec * 1000000 + (uint64_t)usage->ru_utime.tv_usec,
		.stime_us = (uint64_t)usage->ru_stime.tv_sec * 1000000 + (uint64_t)usage->ru_stime.tv_usec,
		.maxrss_kb = (uint64_t)usage->ru_maxrss,
	};
	char byte;

	shutdown(call->sock, SHUT_RD);
	while (recv(call->sock, &byte, sizeof byte, MSG_DONTWAIT) > 0)
		report.where = WIRE_UNREAD;
	say(call->sock, &report);
	close(call->sock);
	call->pid = 0;
	call->taken = call->kept.count > 0;
}

static struct call *call_of(pid_t pid)
{
	for (struct call *call = calls; call < calls + CALLS_MAX; call++)
		if (call->taken && call->pid == pid)
			return call;
	return NULL;
}

static void reap(void)
{
	for (;;) {
		struct rusage usage;
		int status;
		pid_t pid = wait4(-1, &status, WNOHANG | WUNTRACED | __WALL, &usage);

		if (pid <= 0)
			return;

		struct call *call = call_of(pid);

		if (!call)
			continue;
		/* `kill -STOP -1` stops waiting spares too, and SIGSTOP can't be blocked: without this the
		 * next calls would sleep to their deadlines. Also the stops of a child that made the guest
		 * its tracer (PTRACE_TRACEME) come here. */
		if (WIFSTOPPED(status))
			kill(pid, SIGCONT);
		else if (WIFEXITED(status) || WIFSIGNALED(status))
			report_exit(call, status, &usage);
	}
}

static struct call *vacancy(void)
{
	for (struct call *call = calls; call < calls + CALLS_MAX; call++)
		if (!call->taken)
			return call;
	return NULL;
}

static void take(struct call *call, pid_t pid, uint64_t id, const struct wire_fds *fds)
{
	*call = (struct call){ .taken = true, .pid = pid, .sock = fds->fd[0], .id = id };
	call->kept.count = fds->count - 1;
	memcpy(call->kept.fd, fds->fd + 1, call->kept.count * sizeof *fds->fd);
}

/* 0, or why there is no spare; then the descriptors are still the caller's. */
static int prefork(const struct wire_fds *fds, uint64_t id)
{
	struct call *call = vacancy();

	if (!call)
		return EAGAIN;

	pid_t pid = fork();

	if (pid == 0)
		spare(fds->fd[0], id);
	if (pid < 0)
		return errno;
	take(call, pid, id, fds);
	return 0;
}

/*
 * A child that a held shell made (hold.c). 0, or why it is not taken; then the descriptors are still
 * the caller's. One that is dead is taken if nobody has reaped it, and reported by the reap to come.
 */
static int adopt(const struct wire_fds *fds, uint64_t id, pid_t pid)
{
	struct call *call = vacancy();
	siginfo_t about;

	if (!call)
		return EAGAIN;
	if (call_of(pid))
		return EEXIST;
	if (waitid(P_PID, (id_t)pid, &about, WEXITED | WNOHANG | WNOWAIT | __WALL) < 0)
		return errno;
	take(call, pid, id, fds);
	/* of a stop from before nothing is heard any more */
	kill(pid, SIGCONT);
	tell(call->sock, WIRE_ADOPTED, id, 0, 0);
	return 0;
}

static void forget(uint64_t id)
{
	for (struct call *call = calls; call < calls + CALLS_MAX; call++) {
		if (call->taken && call->id == id && call->kept.count > 0) {
			wire_close(&call->kept);
			call->taken = call->pid != 0;
			return;
		}
	}
}

/* The first entry from number `from` on that keeps something. */
static void hand_over(int control, uint64_t from)
{
	uint64_t number = from;

	while (number < CALLS_MAX && !(calls[number].taken && calls[number].kept.count > 0))
		number++;
	if (number >= CALLS_MAX) {
		tell(control, WIRE_CALL, 0, 0, CALLS_MAX);
		return;
	}

	const struct call *call = &calls[number];
	struct wire_report report = {
		.magic = WIRE_MAGIC, .type = WIRE_CALL, .id = call->id, .where = (uint32_t)number,
	};
	size_t size = call->kept.count * sizeof *call->kept.fd;
	union {
		char bytes[CMSG_SPACE(sizeof(int) * WIRE_KEEP_MAX)];
		struct cmsghdr align;
	} rights = { 0 };
	struct iovec part = { .iov_base = &report, .iov_len = sizeof report };
	struct msghdr message = {
		.msg_iov = &part,
		.msg_iovlen = 1,
		.msg_control = rights.bytes,
		.msg_controllen = CMSG_SPACE(size),
	};
	struct cmsghdr *head = CMSG_FIRSTHDR(&message);

	head->cmsg_level = SOL_SOCKET;
	head->cmsg_type = SCM_RIGHTS;
	head->cmsg_len = CMSG_LEN(size);
	memcpy(CMSG_DATA(head), call->kept.fd, size);
	while (sendmsg(control, &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 && errno == EINTR)
		;
}

/* One message of the host. False when the peer is gone. */
static bool serve(int control)
{
	char record[sizeof(struct wire_command) + 1]; /* one more: a longer record is no command */
	struct wire_fds fds;
	struct wire_command command = { 0 };
	ssize_t size = wire_receive(control, record, sizeof record, MSG_DONTWAIT, &fds);
	int error;

	if (size == 0)
		return false;
	if (size < 0 && errno != EBADMSG)
		return errno == EAGAIN;
	error = size < 0 ? EBADMSG : wire_check_command(record, (size_t)size, fds.count, &command);
	if (!error && command.type == WIRE_DONE)
		forget(command.id);
	if (!error && command.type == WIRE_TAKE)
		hand_over(control, command.id);
	if (!error && (command.type == WIRE_PREFORK || command.type == WIRE_ADOPT)) {
		error = command.type == WIRE_PREFORK ? prefork(&fds, command.id) :
						       adopt(&fds, command.id, command.pid);
		if (!error)
			return true; /* the descriptors are the call's now */
	}
	if (!error && command.type == WIRE_FORK)
		error = EBADMSG;
	/* the reason first: to the host, the end of the call's socket is the refusal */
	if (error)
		tell(control, WIRE_ERROR, command.id, error, 0);
	wire_close(&fds);
	return true;
}

static _Noreturn void fail(int status, const char *why)
{
	ssize_t ignored = write(2, why, strlen(why));

	(void)ignored;
	_exit(status);
}

/* The number of a listening sequenced-packet socket, else the end. */
static int listener_of(const char *text)
{
	char *end;
	long fd = strtol(text, &end, 10);
	int type = 0, listening = 0;
	socklen_t size = sizeof(int);

	if (text[0] < '0' || text[0] > '9' || *end != 0 || fd < 3 || fd > 1 << 20)
		fail(2, "guest: FD must be 3 or higher\n");
	if (getsockopt((int)fd, SOL_SOCKET, SO_TYPE, &type, &size) < 0 || type != SOCK_SEQPACKET ||
	    getsockopt((int)fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &size) < 0 || !listening)
		fail(2, "guest: FD is no listening SOCK_SEQPACKET socket\n");
	return (int)fd;
}

/* Nothing open but the listener at 3 and /dev/null at 0, 1 and 2 (the log of the launcher ends
 * here). */
static void settle_descriptors(int listener)
{
	if ((listener != 3 && dup3(listener, 3, O_CLOEXEC) < 0) || fcntl(3, F_SETFD, FD_CLOEXEC) < 0 ||
	    close_range(4, ~0U, 0) < 0)
		fail(1, "guest: can't move the listener\n");

	int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	if (null < 0 || dup2(null, 0) < 0 || dup2(null, 1) < 0)
		fail(1, "guest: can't open /dev/null\n");
	if (dup2(null, 2) < 0)
		_exit(1);
	if (null > 2)
		close(null);
}

static int block_signals(void)
{
	uint64_t all = ~(uint64_t)0;
	sigset_t children;

	/* At the default, so that SIGCHLD left ignored by a launcher doesn't reap behind our back. */
	set_dispositions(SIG_DFL);
	syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, NULL, sizeof all);
	sigemptyset(&children);
	sigaddset(&children, SIGCHLD);
	return signalfd(-1, &children, SFD_CLOEXEC | SFD_NONBLOCK);
}

static _Noreturn void run(int listener, int signals, bool persist)
{
	int control = -1;

	for (;;) {
		/* poll(2) passes over negative descriptors; a second peer waits in the backlog */
		struct pollfd wait[] = {
			{ .fd = signals, .events = POLLIN },
			{ .fd = control, .events = POLLIN },
			{ .fd = control < 0 ? listener : -1, .events = POLLIN },
		};

		if (poll(wait, 3, -1) < 0) {
			if (errno == EINTR)
				continue;
			_exit(1);
		}
		if (wait[0].revents) {
			struct signalfd_siginfo info;

			while (read(signals, &info, sizeof info) > 0)
				;
			reap();
		}
		if (wait[1].revents && !serve(control)) {
			if (!persist)
				_exit(0);
			close(control);
			control = -1;
		}
		if (wait[2].revents) {
			control = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
			if (control < 0 && errno != EINTR && errno != ECONNABORTED)
				_exit(1);
			if (control >= 0) {
				if (!persist) {
					close(listener);
					listener = -1;
				}
				tell(control, WIRE_HELLO, 0, getpid(), WIRE_VERSION);
			}
		}
	}
}

int main(int argc, char **argv)
{
	/* First of all: from here on nobody inside can open or trace this process or a spare. */
	if (prctl(PR_SET_DUMPABLE, 0) < 0)
		fail(1, "guest: can't forbid dumps\n");

	bool persist = argc == 3 && strcmp(argv[2], "--persist") == 0;

	if (argc < 2 || argc > 3 || (argc == 3 && !persist))
		fail(2, "usage: guest FD [--persist]\n");
	/* The end of another process than pid 1 would leave behind what it started. */
	if (getpid() != 1)
		fail(2, "guest: must be pid 1\n");

	int listener = listener_of(argv[1]);

	umask(022);
	settle_descriptors(listener);
	int signals = block_signals();

	if (signals < 0)
		_exit(1);
	run(3, signals, persist);
}
