/*
 * regular.so: preloaded into the search program, so that it reads nothing but regular files.
 *
 * ripgrep takes `.gitignore` and its like wherever it finds the name, and opens them without
 * asking what they are. A FIFO of that name has no writer, so the open(2) waits for ever; a link to
 * a device never ends. Every open for reading is therefore made without waiting, and what turns
 * out to be neither a regular file nor a directory is as good as absent.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static int open_regular(int dir, const char *path, int flags, mode_t mode)
{
	int plain = (flags & O_ACCMODE) == O_RDONLY && !(flags & (O_PATH | O_CREAT));
	int fd = (int)syscall(SYS_openat, dir, path, plain ? flags | O_NONBLOCK : flags, mode);
	struct stat info;

	if (fd < 0 || !plain)
		return fd;
	if (fstat(fd, &info) == 0 && (S_ISREG(info.st_mode) || S_ISDIR(info.st_mode)))
		return fd;
	close(fd);
	errno = ENOENT;
	return -1;
}

#define MODE(flags, mode)                                                                   \
	do {                                                                                \
		if ((flags) & (O_CREAT | __O_TMPFILE)) {                                    \
			va_list rest;                                                       \
			va_start(rest, flags);                                              \
			(mode) = va_arg(rest, mode_t);                                      \
			va_end(rest);                                                       \
		}                                                                           \
	} while (0)

int open(const char *path, int flags, ...)
{
	mode_t mode = 0;
	MODE(flags, mode);
	return open_regular(AT_FDCWD, path, flags, mode);
}

int open64(const char *path, int flags, ...)
{
	mode_t mode = 0;
	MODE(flags, mode);
	return open_regular(AT_FDCWD, path, flags | O_LARGEFILE, mode);
}

int openat(int dir, const char *path, int flags, ...)
{
	mode_t mode = 0;
	MODE(flags, mode);
	return open_regular(dir, path, flags, mode);
}

int openat64(int dir, const char *path, int flags, ...)
{
	mode_t mode = 0;
	MODE(flags, mode);
	return open_regular(dir, path, flags | O_LARGEFILE, mode);
}
