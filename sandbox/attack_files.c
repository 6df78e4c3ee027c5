/* Attempts on files. Paths are arguments; a content that must not be read holds the mark. */
#define _GNU_SOURCE
#include "attack.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

static const char line[] = "changed\n";

static void read_file(char **a) /* path, mark */
{
	int fd = open(a[0], O_RDONLY | O_CLOEXEC | O_NONBLOCK);

	if (fd < 0)
		refused("open");
	judge_content(fd, a[1]);
}

static void read_link(char **a) /* path */
{
	char name[4096];
	ssize_t size = readlink(a[0], name, sizeof name - 1);

	if (size < 0)
		refused("readlink");
	name[size] = 0;
	won("it leads to %.100s", name);
}

static void append(const char *path)
{
	int fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC | O_NONBLOCK);

	if (fd < 0)
		refused("open");
	verdict("write", write(fd, line, sizeof line - 1));
}

static void write_file(char **a) /* path */
{
	append(a[0]);
}

static void open_for_writing(char **a) /* path; nothing is written */
{
	verdict("open", open(a[0], O_WRONLY | O_CLOEXEC | O_NONBLOCK));
}

static void create(char **a) /* path */
{
	verdict("create", open(a[0], O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
}

static void truncate_file(char **a) /* path */
{
	verdict("truncate", truncate(a[0], 1));
}

static void change_mode(char **a) /* path */
{
	verdict("chmod", chmod(a[0], 0777));
}

static void reopen(char **a) /* path */
{
	char name[64];
	int fd = open(a[0], O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		refused("open");
	snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
	append(name);
}

static void hard_link(char **a) /* protected path, writable path */
{
	if (link(a[0], a[1]) < 0)
		refused("link");
	append(a[1]);
}

static void move_out(char **a) /* protected path, writable path */
{
	verdict("rename", rename(a[0], a[1]));
}

static void climb_by_link(char **a) /* target, link, mark */
{
	if (symlink(a[0], a[1]) < 0)
		cannot("symlink: %s", strerrorname_np(errno));
	read_file(a + 1);
}

/* parent and name of a denied directory: move the parent away and make a directory in its place */
static void move_denial(char **a) /* parent, other name, denied file */
{
	char *slash = strrchr(a[2], '/');

	if (rename(a[0], a[1]) < 0)
		refused("rename");
	if (mkdir(a[0], 0755) < 0)
		refused("mkdir");
	*slash = 0;
	if (mkdir(a[2], 0755) < 0)
		refused("mkdir");
	*slash = '/';
	create(a + 2);
}

static void exchange_denial(char **a) /* denied directory, own directory */
{
	for (int i = 0; i < 2; i++)
		if (mkdir(a[i], 0755) < 0 && errno != EEXIST)
			cannot("mkdir: %s", strerrorname_np(errno));
	verdict("renameat2", syscall(SYS_renameat2, AT_FDCWD, a[1], AT_FDCWD, a[0], 2));
}

static void exec_copy(char **a) /* path */
{
	int error = copy_self(a[0]);

	if (error)
		cannot("copy: %s", strerrorname_np(error));
	int status = run_copy(a[0], "true");
	unlink(a[0]);
	if (status < 0)
		held("execve: %s", strerrorname_np(-status));
	won("the copy ended with %d", status);
}

static void map_code(char **a) /* path */
{
	int error = copy_self(a[0]);
	int fd = open(a[0], O_RDONLY | O_CLOEXEC);

	if (error || fd < 0)
		cannot("copy: %s", strerrorname_np(error ? error : errno));
	void *code = mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0);
	unlink(a[0]);
	if (code == MAP_FAILED)
		refused("mmap");
	won("code of it is mapped executable");
}

static void make_device(char **a) /* path: the numbers of /dev/null */
{
	int result = mknod(a[0], S_IFCHR | 0666, makedev(1, 3));

	if (result == 0)
		unlink(a[0]);
	verdict("mknod", result);
}

static void open_device(char **a) /* path */
{
	struct stat about;
	int fd = open(a[0], O_RDWR | O_CLOEXEC);

	if (fd < 0)
		refused("open");
	if (fstat(fd, &about) < 0 || !S_ISCHR(about.st_mode))
		held("it is no device");
	won("device %u:%u is open", major(about.st_rdev), minor(about.st_rdev));
}

/* Leaves for the host's tools what they should not fall for. */
static void leave_link(char **a) /* target, link */
{
	verdict("symlink", symlink(a[0], a[1]));
}

static void leave_fifo(char **a) /* path */
{
	verdict("mkfifo", mkfifo(a[0], 0666));
}

static void leave_sparse(char **a) /* path, mebibytes */
{
	int fd = open(a[0], O_WRONLY | O_CREAT | O_CLOEXEC, 0644);

	verdict("ftruncate", fd < 0 ? -1 : ftruncate(fd, number(a[1]) << 20));
}

/* Exchanges a directory and a link to the host's until it is killed. */
static void leave_swapping(char **a) /* target, directory */
{
	char link[4096], file[4200];

	snprintf(link, sizeof link, "%s.link", a[1]);
	snprintf(file, sizeof file, "%s/secret", a[1]);
	if (mkdir(a[1], 0755) < 0 || symlink(a[0], link) < 0)
		cannot("it can't be prepared: %s", strerrorname_np(errno));
	int fd = open(file, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
	if (fd < 0 || write(fd, "harmless\n", 9) != 9)
		cannot("it can't be prepared: %s", strerrorname_np(errno));
	int swapping[2];
	if (pipe2(swapping, O_CLOEXEC) < 0)
		cannot("pipe: %s", strerrorname_np(errno));
	pid_t child = fork();
	if (child < 0)
		cannot("fork: %s", strerrorname_np(errno));
	if (child) {
		/* Told only when it is out of reach of the sweep that follows the attempt. */
		close(swapping[1]);
		if (read(swapping[0], file, 1) != 0)
			cannot("pipe: %s", strerrorname_np(errno));
		won("pid %d swaps", child);
	}
	setsid();
	close(swapping[1]);
	for (;;)
		syscall(SYS_renameat2, AT_FDCWD, link, AT_FDCWD, a[1], 2);
}

static void shell(char **a) /* line */
{
	char text[200] = "";
	int out[2], status;

	if (pipe2(out, O_CLOEXEC) < 0)
		cannot("pipe: %s", strerrorname_np(errno));
	pid_t child = fork();
	if (child == 0) {
		dup2(out[1], 1), dup2(out[1], 2);
		execl("/bin/sh", "sh", "-c", a[0], (char *)NULL);
		_exit(125);
	}
	close(out[1]);
	ssize_t got = read(out[0], text, sizeof text - 1);
	waitpid(child, &status, 0);
	if (!WIFEXITED(status) || WEXITSTATUS(status) == 125)
		cannot("the shell did not run");
	if (WEXITSTATUS(status))
		held("status %d: %s", WEXITSTATUS(status), got > 0 ? text : "");
	won("%s", got > 0 ? text : "status 0");
}

const struct attack file_attacks[] = {
	{ "read", 2, read_file },
	{ "readlink", 1, read_link },
	{ "write", 1, write_file },
	{ "open-for-writing", 1, open_for_writing },
	{ "create", 1, create },
	{ "truncate", 1, truncate_file },
	{ "chmod", 1, change_mode },
	{ "reopen", 1, reopen },
	{ "hard-link", 2, hard_link },
	{ "move-out", 2, move_out },
	{ "climb-by-link", 3, climb_by_link },
	{ "move-denial", 3, move_denial },
	{ "exchange-denial", 2, exchange_denial },
	{ "exec-copy", 1, exec_copy },
	{ "map-code", 1, map_code },
	{ "make-device", 1, make_device },
	{ "open-device", 1, open_device },
	{ "leave-link", 2, leave_link },
	{ "leave-fifo", 1, leave_fifo },
	{ "leave-sparse", 2, leave_sparse },
	{ "leave-swapping", 2, leave_swapping },
	{ "shell", 1, shell },
	{ NULL, 0, NULL },
};
