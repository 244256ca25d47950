/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mount ROUNDS DIR META[,DEVICE..] [META[,DEVICE..]..]
 *
 * What it costs to bring layers to a sandbox, by the functions that launches
 * use, each ROUNDS times, in turns, in a mount namespace of our own; DIR is
 * where it mounts, on a tmpfs, which has the upper directories too: on a disk
 * those would cost more than all the rest.  One record with the median and
 * the least time of each, in microseconds:
 *
 *   file      the first layer, mounted from its files
 *   loop      the same from loop devices; null where this cannot be
 *   env       overlay on all of them, which are mounted, ids mapped as a launch
 *             does it
 *   overlay   the overlay alone, on the mounts as they are
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "sys/erofs.h"
#include "sys/mount.h"
#include "sys/userns.h"

#define LAYERS_MAX  16
#define DEVICES_MAX 255
#define ROUNDS_MAX  1000
#define UID_BASE    1073741824

struct layer {
	struct erofs_want want;
	int devices[DEVICES_MAX];
	char at[4096];
};

static struct layer layers[LAYERS_MAX];
static int nlayers, userns = -1;
static const char *dir;

static void die(const char *what, int r)
{
	fprintf(stderr, "mount: %s: %s\n", what, strerror(-r));
	exit(1);
}

static double now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static void make(const char *path)
{
	if (mkdir(path, 0755) < 0 && errno != EEXIST)
		die(path, -errno);
}

static int open_file(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		die(path, -errno);
	return fd;
}

static void add_layer(char *text)
{
	struct layer *l = &layers[nlayers];
	char *part = strtok(text, ",");

	l->want.meta = open_file(part);
	while ((part = strtok(NULL, ",")) && l->want.ndevices < DEVICES_MAX)
		l->devices[l->want.ndevices++] = open_file(part);
	l->want.devices = l->devices;
	snprintf(l->at, sizeof(l->at), "%s/l%d", dir, nlayers++);
	make(l->at);
}

/* --- what is measured: microseconds, or -errno --------------------------- */

static double mount_one(bool loop)
{
	struct erofs_want w = layers[0].want;
	struct err e = {0};
	char at[4096];
	double t;
	int r;

	w.loop = loop;
	snprintf(at, sizeof(at), "%s/one", dir);
	make(at);
	t = now_us();
	r = erofs_mount(&w, at, &e);
	t = now_us() - t;
	if (r < 0)
		return r;
	umount(at);
	return t;
}

static int map_layer(const char *at)
{
	struct mount_copy m = {
		.source = at,
		.userns = userns,
		.target_fd = AT_FDCWD,
		.target = at,
	};

	return mount_idmapped(&m);
}

static double mount_env(bool map, int round)
{
	char options[4096], up[4096], at[4096];
	int n, r = 0;
	double t;

	snprintf(up, sizeof(up), "%s/u%d%d", dir, round, map);
	make(up);
	snprintf(at, sizeof(at), "%s/u%d%d/work", dir, round, map);
	make(at);
	snprintf(at, sizeof(at), "%s/u%d%d/upper", dir, round, map);
	make(at);
	snprintf(at, sizeof(at), "%s/env", dir);
	make(at);
	n = snprintf(options, sizeof(options), "lowerdir=");
	for (int i = nlayers; i-- > 0;)
		n += snprintf(options + n, sizeof(options) - (size_t)n, "%s%s",
			      layers[i].at, i ? ":" : "");
	snprintf(options + n, sizeof(options) - (size_t)n,
		 ",upperdir=%s/upper,workdir=%s/work,redirect_dir=off,"
		 "metacopy=off,index=off,xino=off,volatile",
		 up, up);
	t = now_us();
	for (int i = 0; map && r == 0 && i < nlayers; i++)
		r = map_layer(layers[i].at);
	if (r == 0)
		r = mount_fs("overlay", at, MS_NOSUID | MS_NODEV, options);
	t = now_us() - t;
	if (r == 0)
		umount(at);
	for (int i = 0; map && i < nlayers; i++)
		umount(layers[i].at);
	return r < 0 ? r : t;
}

/* --- the record ---------------------------------------------------------- */

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static void tell(const char *name, double *t, int n, const char *end)
{
	qsort(t, (size_t)n, sizeof(*t), by_size);
	if (t[0] < 0)
		printf("\"%s\":null%s", name, end);
	else
		printf("\"%s\":{\"median_us\":%.1f,\"min_us\":%.1f}%s", name,
		       t[n / 2], t[0], end);
}

int main(int argc, char **argv)
{
	static char stack[65536] __attribute__((aligned(16)));
	static double file[ROUNDS_MAX], loop[ROUNDS_MAX], env[ROUNDS_MAX],
		plain[ROUNDS_MAX];
	struct err e = {0};
	int rounds = argc > 3 ? atoi(argv[1]) : 0, r;

	if (rounds < 1 || rounds > ROUNDS_MAX || argc - 3 > LAYERS_MAX) {
		fprintf(stderr, "usage: mount ROUNDS DIR META[,DEVICE..]..\n");
		return 64;
	}
	dir = argv[2];
	if (unshare(CLONE_NEWNS) < 0 ||
	    mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
		die("mount namespace", -errno);
	if (mount("tmpfs", dir, "tmpfs", 0, NULL) < 0)
		die(dir, -errno);
	userns = userns_new(UID_BASE, false, stack, sizeof(stack), &e);
	if (userns < 0)
		die(e.msg, userns);
	for (int i = 3; i < argc; i++) {
		add_layer(argv[i]);
		r = erofs_mount(&layers[i - 3].want, layers[i - 3].at, &e);
		if (r < 0)
			die(e.msg, r);
	}
	for (int i = 0; i < rounds; i++) {
		file[i] = mount_one(false);
		loop[i] = mount_one(true);
		env[i] = mount_env(true, i);
		plain[i] = mount_env(false, i);
	}
	printf("{\"rounds\":%d,\"layers\":%d,", rounds, nlayers);
	tell("file", file, rounds, ",");
	tell("loop", loop, rounds, ",");
	tell("env", env, rounds, ",");
	tell("overlay", plain, rounds, "}\n");
	return 0;
}
