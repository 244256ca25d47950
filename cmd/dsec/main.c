/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "base/version.h"
#include "wire/exit.h"

/* dsec NAME ... becomes dsec-NAME ... */

static const struct {
	const char *name, *what;
} programs[] = {
	{"run", "make a sandbox, or run one command in one"},
	{"exec", "commands, sessions, terminals and files in a sandbox"},
	{"pause", "pause, resume and stop sandboxes"},
	{"ps", "what runs here: list, inspect, watch, wait"},
	{"doctor", "is this node fit, what can it do, is anything leaked"},
	{"img", "images: import, layer, pack, verify, prune"},
	{"place", "choose a node for a sandbox"},
	{"admit", "the final admission of a sandbox on this node"},
	{"fork", "copies of a sandbox with its memory"},
	{"net", "compile, apply, explain and test network policy"},
	{"call", "function calls from a warm pool"},
	{"iam", "authenticate, authorise, quotas, projects, audit"},
	{"serve", "the programs behind TLS"},
};

/* The directory this program lies in, with a slash; "" if that is not known. */
static const char *own_dir(void)
{
	static char dir[PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", dir, sizeof(dir) - 1);

	while (n > 0 && dir[n - 1] != '/')
		n--;
	dir[n > 0 ? n : 0] = '\0';
	return dir;
}

/* The path of dsec-NAME beside us, else in PATH.  0 or -ENOENT. */
static int find(const char *name, char *path)
{
	const char *p = getenv("PATH"), *end;
	int n;

	n = snprintf(path, PATH_MAX, "%sdsec-%s", own_dir(), name);
	if (n < PATH_MAX && path[0] == '/' && access(path, X_OK) == 0)
		return 0;
	for (; p && *p; p = *end ? end + 1 : end) {
		end = strchrnul(p, ':');
		n = snprintf(path, PATH_MAX, "%.*s/dsec-%s", (int)(end - p), p,
			     name);
		if (n < PATH_MAX && path[0] == '/' && access(path, X_OK) == 0)
			return 0;
	}
	return -ENOENT;
}

static size_t min3(size_t a, size_t b, size_t c)
{
	size_t m = a < b ? a : b;

	return m < c ? m : c;
}

#define NAME_MAX_LEN 31

/* How many letters must change for ${a} to become ${b}. */
static size_t distance(const char *a, const char *b)
{
	size_t row[NAME_MAX_LEN + 1], n = strlen(b), corner, up;

	for (size_t j = 0; j <= n; j++)
		row[j] = j;
	for (size_t i = 0; a[i]; i++) {
		corner = row[0];
		row[0] = i + 1;
		for (size_t j = 1; j <= n; j++) {
			up = row[j];
			row[j] = min3(up + 1, row[j - 1] + 1,
				      corner + (a[i] != b[j - 1]));
			corner = up;
		}
	}
	return row[n];
}

static int unknown(const char *name)
{
	const char *best = NULL;
	size_t least = 3, d;

	for (size_t i = 0; i < array_len(programs); i++) {
		if (strlen(name) > NAME_MAX_LEN)
			break;
		d = distance(name, programs[i].name);
		/* Not a name that shares nothing with it. */
		if (d < least && d < strlen(programs[i].name)) {
			least = d;
			best = programs[i].name;
		}
	}
	if (best && least == 0)
		log_error("dsec-%s is not installed here", best);
	else if (best)
		log_error("no program '%.64s': is it '%s'? (dsec --help lists "
			  "them)",
			  name, best);
	else
		log_error("no program '%.64s': dsec --help lists them", name);
	return EXIT_USAGE_ERROR;
}

static int help(void)
{
	char path[PATH_MAX];

	dprintf(STDOUT_FILENO,
		"usage: dsec PROGRAM [ARG]...\n"
		"       dsec --server HOST:PORT PROGRAM [ARG]...\n"
		"       dsec --help | --version\n"
		"dsec PROGRAM is dsec-PROGRAM; each has --help.\n");
	for (size_t i = 0; i < array_len(programs); i++)
		if (find(programs[i].name, path) == 0)
			dprintf(STDOUT_FILENO, "  %-8s %s\n", programs[i].name,
				programs[i].what);
	dprintf(STDOUT_FILENO, "  --server HOST:PORT  of a control or node "
			       "that does it\n");
	return EXIT_OK;
}

static int become(const char *name, char **argv)
{
	char path[PATH_MAX];

	if (!*name || strchr(name, '/') || find(name, path) < 0)
		return unknown(name);
	/* It finds itself, and its usage line, by its full name. */
	argv[0] = strrchr(path, '/') + 1;
	execv(path, argv);
	log_error("execute %s: %s", path, strerror(errno));
	return EXIT_SYSTEM;
}

/* dsec --server HOST:PORT NAME ...: dsec-serve knows how to ask. */
static int become_client(int argc, char **argv)
{
	char **words = calloc((size_t)argc + 2, sizeof(char *));

	if (!words || argc < 4) {
		log_error("--server HOST:PORT PROGRAM [ARG]...");
		free(words);
		return EXIT_USAGE_ERROR;
	}
	/* argv[0] is set there. */
	words[1] = (char[]){"client"};
	memcpy(words + 2, argv + 1, (size_t)argc * sizeof(char *));
	return become("serve", words);
}

int main(int argc, char **argv)
{
	const char *word = argc > 1 ? argv[1] : "--help";

	log_init("dsec");
	if (!strcmp(word, "--help") || !strcmp(word, "-h"))
		return help();
	if (!strcmp(word, "--version")) {
		dprintf(STDOUT_FILENO, "dsec " DSEC_VERSION "\n");
		return EXIT_OK;
	}
	if (!strcmp(word, "--server"))
		return become_client(argc, argv);
	if (word[0] == '-') {
		log_error("unknown option %.64s: dsec --help tells", word);
		return EXIT_USAGE_ERROR;
	}
	return become(word, argv + 1);
}
