/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "base/near.h"
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

/* Docker's words, and what does that here. */
static const struct {
	const char *word, *ours;
} others[] = {
	{"logs", "exec SANDBOX --attach e0"},
	{"attach", "exec SANDBOX --attach e0"},
	{"cp", "exec --cp FROM TO"},
	{"stop", "pause --stop SANDBOX"},
	{"rm", "pause --stop SANDBOX"},
	{"kill", "pause --stop --grace 0 SANDBOX"},
	{"unpause", "pause --resume SANDBOX"},
	{"create", "run --detach"},
	{"wait", "ps --wait SANDBOX"},
	{"events", "ps --watch"},
	{"stats", "ps --stats"},
	{"inspect", "ps SANDBOX"},
	{"info", "doctor"},
	{"images", "img ls"},
	{"pull", "img pull"},
	{"commit", "img pack SANDBOX"},
	{"save", "img export"},
	{"load", "img import"},
	{"rmi", "img rm"},
};

static int unknown(const char *name)
{
	struct near near = {.word = name};
	char path[PATH_MAX];

	for (size_t i = 0; i < array_len(others); i++)
		if (!strcmp(name, others[i].word)) {
			log_error("no program '%s': dsec %s does that", name,
				  others[i].ours);
			return EXIT_USAGE_ERROR;
		}
	for (size_t i = 0; i < array_len(programs); i++)
		if (!strcmp(name, programs[i].name)) {
			log_error("dsec-%s is not installed here", name);
			return EXIT_USAGE_ERROR;
		} else if (find(programs[i].name, path) == 0) {
			near_try(&near, programs[i].name);
		}
	if (near.best)
		log_error("no program '%.64s': is it '%s'? (dsec --help lists "
			  "them)",
			  name, near.best);
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
