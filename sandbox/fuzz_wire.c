/*
 * Mutations of valid records through the parser: fuzz_wire SEED ITERATIONS
 *
 * Deterministic. Each record is split in a heap block of its exact size, so that the address
 * sanitizer sees a read of one byte too many; whatever is accepted must be exactly what its header
 * says. Ends with an error when nothing was accepted or nothing was refused: then it tested nothing.
 */
#define _GNU_SOURCE
#include "wire.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RECORD_MAX = 4096 };

static uint64_t state;
static char *slots[WIRE_SLOTS];

static uint32_t below(uint32_t bound) /* xorshift64* */
{
	state ^= state >> 12;
	state ^= state << 25;
	state ^= state >> 27;
	return (uint32_t)((state * 0x2545f4914f6cdd1dULL) >> 32) % bound;
}

static void require(int condition, const char *what)
{
	if (!condition) {
		fprintf(stderr, "fuzz_wire: %s\n", what);
		abort();
	}
}

static size_t put(char *record, size_t at, const char *prefix, uint32_t longest)
{
	size_t length = strlen(prefix);
	uint32_t more = below(longest + 1);

	memcpy(record + at, prefix, length);
	for (uint32_t i = 0; i < more; i++)
		record[at + length++] = (char)(1 + below(255));
	record[at + length++] = 0;
	return at + length;
}

static size_t valid(char *record)
{
	struct wire_exec exec = {
		.magic = WIRE_MAGIC,
		.type = WIRE_EXEC,
		.id = below(16),
		.pathc = 1 + below(4),
		.argc = 1 + below(16),
		.envc = below(16),
	};
	size_t at = put(record, sizeof exec, "/", 20);

	for (uint32_t i = 0; i < exec.pathc; i++)
		at = put(record, at, "/bin/", 20);
	for (uint32_t i = 0; i < exec.argc; i++)
		at = put(record, at, "", 60);
	for (uint32_t i = 0; i < exec.envc; i++)
		at = put(record, at, "N=", 60);
	exec.length = at - sizeof exec;
	memcpy(record, &exec, sizeof exec);
	return at;
}

static size_t mutate(char *record, size_t size)
{
	static const uint32_t edges[] = { 0, 1, 2, 63, 64, 65, 65535, 65536, 65537, UINT32_MAX };

	for (uint32_t rounds = below(4); rounds > 0; rounds--) {
		uint32_t edge = edges[below(sizeof edges / sizeof *edges)];

		switch (below(6)) {
		case 0: /* a bit anywhere */
			if (size)
				record[below((uint32_t)size)] ^= (char)(1 << below(8));
			break;
		case 1: /* a header word */
			memcpy(record + 4 * below(sizeof(struct wire_exec) / 4), &edge, sizeof edge);
			break;
		case 2: /* a NUL more */
			if (size)
				record[below((uint32_t)size)] = 0;
			break;
		case 3: /* a NUL less */
			for (size_t at = size; at-- > sizeof(struct wire_exec);)
				if (record[at] == 0 && below(4) == 0) {
					record[at] = 'x';
					break;
				}
			break;
		case 4: /* shorter */
			size = below((uint32_t)size + 1);
			break;
		case 5: { /* shorter or longer by little, with a length that agrees */
			uint64_t length;

			size += below(9);
			size -= size > 4 ? 4 : 0;
			if (size < sizeof(struct wire_exec))
				break;
			length = size - sizeof(struct wire_exec);
			memcpy(record + offsetof(struct wire_exec, length), &length, sizeof length);
			break;
		}
		}
	}
	return size;
}

/* What was accepted, recounted: each string lies behind the one before, the last ends the block. */
static void recount(const char *block, const struct wire_exec *exec, struct wire_program *p)
{
	const char *at = block;
	char **vectors[] = { p->paths, p->argv, p->envp };
	uint32_t counts[] = { exec->pathc, exec->argc, exec->envc };

	require(p->cwd == at && at[0] == '/', "working directory");
	at += strlen(at) + 1;
	for (int v = 0; v < 3; v++) {
		for (uint32_t i = 0; i < counts[v]; i++) {
			require(vectors[v][i] == at, "string");
			at += strlen(at) + 1;
		}
		require(vectors[v][counts[v]] == NULL, "end of a vector");
	}
	require(at == block + exec->length, "end of the block");
}

int main(int argc, char **argv)
{
	if (argc != 3) {
		fprintf(stderr, "usage: fuzz_wire SEED ITERATIONS\n");
		return 2;
	}

	uint64_t iterations = strtoull(argv[2], NULL, 10), accepted = 0, headers = 0;

	state = strtoull(argv[1], NULL, 10) * 2 + 1; /* never 0, where xorshift stays */
	for (uint64_t i = 0; i < iterations; i++) {
		static char record[RECORD_MAX];
		struct wire_command command;
		struct wire_exec exec;
		struct wire_program program;
		unsigned fds = below(8) ? 3 : below(WIRE_FDS_MAX + 1);
		size_t size = mutate(record, valid(record));
		char *copy = malloc(size + 1);

		memcpy(copy, record, size);
		copy = realloc(copy, size ? size : 1);
		wire_check_command(copy, size, fds, &command);
		if (wire_check_exec(copy, size, fds, &exec) == 0) {
			headers++;
			require(exec.argc <= WIRE_STRINGS_MAX && exec.envc <= WIRE_STRINGS_MAX, "counts");
			if (exec.flags & WIRE_IN_MEMFD) {
				/* as the guest does: the header alone, the block from elsewhere */
				require(size == sizeof exec && fds == 4, "memfd");
				free(copy);
				exec.length = exec.length % RECORD_MAX;
				copy = malloc(exec.length + 1);
				memcpy(copy, record, exec.length);
				copy = realloc(copy, exec.length ? exec.length : 1);
				if (wire_split(copy, &exec, slots, &program) == 0)
					recount(copy, &exec, &program);
			} else if (wire_split(copy + sizeof exec, &exec, slots, &program) == 0) {
				accepted++;
				recount(copy + sizeof exec, &exec, &program);
			}
		}
		free(copy);
	}
	printf("fuzz_wire: %" PRIu64 " records, %" PRIu64 " headers and %" PRIu64 " requests accepted\n",
	       iterations, headers, accepted);
	return accepted == 0 || headers == accepted || headers == iterations;
}
