/*
 * The words between the host and the guest, and the only code that reads them.
 *
 * Every message is one SOCK_SEQPACKET record that begins with magic, type and id. Integers are
 * native endian (both ends run on one kernel) and every struct is free of padding. Two sockets:
 *
 *   control    guest -> host  HELLO (value: the guest's pid inside; where: WIRE_VERSION)
 *              host -> guest  PREFORK + the call's socket and what is to be kept, DONE
 *              guest -> host  ERROR (value: errno)
 *              host -> guest  TAKE (id: an entry's number)
 *              guest -> host  CALL (where: the entry's number) + what it keeps; or CALL without
 *                             descriptors (where: CALLS_MAX) if no entry from there on keeps any
 *              host -> guest  ADOPT (pid: of its child) + what a PREFORK has
 *   of a call  spare -> host  READY (value: its pid inside), EXECFAIL (value: errno; where)
 *              host -> spare  EXEC + three or four descriptors
 *              spare -> host  HELD, after an EXEC under WIRE_HOLD; UNUSED: it ends and ran nothing
 *              host -> spare  ARGUMENT, and its text without a NUL
 *              host -> spare  FORK + the new call's socket, its stdout and stderr, to one that is
 *                             HELD; from that one FORKED (value: the new one's pid inside, or
 *                             -errno), and READY on the new socket from the new one
 *              guest -> host  ADOPTED
 *              guest -> host  EXIT (value: wait status; where: WIRE_UNREAD if the last message that
 *                             the host sent was never read)
 *
 * An EXEC record is struct wire_exec and a block of NUL-terminated strings: the working directory,
 * `pathc` paths, `argc` arguments, `envc` NAME=VALUE entries, and nothing else. A block above
 * WIRE_INLINE_MAX comes in a memfd instead, the fourth descriptor, under WIRE_IN_MEMFD. Under
 * WIRE_HOLD the program is a shell that waits for its command: the last argument has WIRE_HOLD_MAX
 * bytes that keep its place, and the environment preloads hold.so (hold.c).
 *
 * What PREFORK brings beside the socket is for the next host: its own end of that socket, on which
 * every unread report then waits, and whatever else it needs to go on with the call. The guest keeps
 * it, untouched, until DONE. So the end of a call's socket is a DONE and the host's close.
 *
 * A shell that is held can be forked instead of used: the new one is held too, and the guest's child
 * as well. The guest learns of it by ADOPT, and reports its end as any other's.
 *
 * The parser refuses by default, allocates nothing and reads no byte outside what it was given.
 */
#ifndef STOCKADE_WIRE_H
#define STOCKADE_WIRE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { WIRE_MAGIC = 0x53544b44, WIRE_VERSION = 4 };

enum wire_type {
	WIRE_HELLO = 1,
	WIRE_PREFORK = 2,
	WIRE_READY = 3,
	WIRE_EXEC = 4,
	WIRE_EXIT = 5,
	WIRE_EXECFAIL = 6,
	WIRE_ERROR = 7,
	WIRE_HELD = 10,
	WIRE_ARGUMENT = 11,
	WIRE_DONE = 12,
	WIRE_TAKE = 13,
	WIRE_CALL = 14,
	WIRE_UNUSED = 15,
	WIRE_FORK = 16,
	WIRE_FORKED = 17,
	WIRE_ADOPT = 18,
	WIRE_ADOPTED = 19,
};

/* `where` of EXECFAIL: what failed. Nothing of the command ran in any of these cases. */
enum wire_where {
	WIRE_AT_REQUEST = 1,
	WIRE_AT_DESCRIPTORS = 2,
	WIRE_AT_CWD = 3,
	WIRE_AT_EXEC = 4,
};

enum { WIRE_UNREAD = 1 };   /* `where` of EXIT */
enum { WIRE_IN_MEMFD = 1, WIRE_HOLD = 2 }; /* `flags` of EXEC */

enum {
	WIRE_INLINE_MAX = 64 * 1024,
	WIRE_HOLD_MAX = 8 * 1024, /* bytes of an ARGUMENT's text */
	WIRE_BLOCK_MAX = 3 * 1024 * 1024,
	WIRE_PATHS_MAX = 64,
	WIRE_STRINGS_MAX = 65536, /* of argv and of env, each */
	WIRE_FDS_MAX = 8,         /* kept from one message; no request carries more */
	WIRE_KEEP_MAX = 6,        /* descriptors of a PREFORK beside the socket */
	/* pointers that wire_split needs at most: three vectors, each with a NULL at its end */
	WIRE_SLOTS = WIRE_PATHS_MAX + 2 * WIRE_STRINGS_MAX + 3,
};

struct wire_command { /* PREFORK, DONE, TAKE, ADOPT, FORK, ARGUMENT */
	uint32_t magic, type;
	uint64_t id;
	int32_t pid; /* of ADOPT; else 0 */
	uint32_t zero;
};

struct wire_exec {
	uint32_t magic, type;
	uint64_t id;
	uint32_t pathc, argc, envc, flags;
	uint64_t length; /* bytes of the string block */
};

struct wire_report { /* everything that the guest and its spares say */
	uint32_t magic, type;
	uint64_t id;
	int32_t value;
	uint32_t where;
	uint64_t utime_us, stime_us, maxrss_kb;
};

_Static_assert(sizeof(struct wire_command) == 24, "padding");
_Static_assert(sizeof(struct wire_exec) == 40, "padding");
_Static_assert(sizeof(struct wire_report) == 48, "padding");

struct wire_fds {
	int fd[WIRE_FDS_MAX];
	unsigned count;
};

/* Pointers into the string block, in NULL-terminated vectors. */
struct wire_program {
	char *cwd;
	char **paths, **argv, **envp;
};

/*
 * Waits for a record or the end of file. Before a receive on which "unread" is evidence: recvmsg(2)
 * that is woken by SIGKILL still takes a record that came meanwhile, and the process dies with it
 * before its next instruction. poll(2) takes nothing.
 */
void wire_await(int sock);

/*
 * One record and its descriptors, all close-on-exec. Gives its size, 0 at end of file (an empty
 * record counts as one), or -1 and errno. A record that came truncated, in bytes or in
 * descriptors, is EBADMSG. Unless the result is positive, no descriptor is left open.
 */
ssize_t wire_receive(int sock, void *buffer, size_t capacity, int flags, struct wire_fds *fds);

void wire_close(struct wire_fds *fds);

/* 0, or the errno that refuses the record. `command` and `exec` are set only on 0. */
int wire_check_command(const void *record, size_t size, unsigned fds,
		       struct wire_command *command);
int wire_check_exec(const void *record, size_t size, unsigned fds, struct wire_exec *exec);

/*
 * Cut the string block of a checked EXEC. `slots` holds the pointers, WIRE_SLOTS of them suffice
 * for any checked EXEC. 0, or EBADMSG unless the block is exactly the strings it was said to be:
 * absolute working directory and paths, entries with a name before the first '='.
 */
int wire_split(char *block, const struct wire_exec *exec, char **slots,
	       struct wire_program *program);

#endif
