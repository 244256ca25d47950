/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MATRIX_MEMORY_H
#define MATRIX_MEMORY_H

#include <stdatomic.h>
#include <sys/mman.h>

#include "matrix.h"

/* The processes of matrix.c that watch over memory. */

struct turns {
	atomic_ulong up, down;
};

static struct turns *anonymous, *in_memfd;
static int mem_fd;

static void memory_open(void)
{
	mem_fd = memfd_create("matrix", MFD_CLOEXEC);
	if (mem_fd < 0 || ftruncate(mem_fd, 8192) < 0)
		_exit(2);
	in_memfd = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, mem_fd,
			0);
	anonymous = mmap(NULL, 8192, PROT_READ | PROT_WRITE,
			 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}

static bool reached(const atomic_ulong *v, unsigned long want)
{
	for (int i = 0; i < PATIENT_MS / 5; i++) {
		if (atomic_load(v) >= want)
			return atomic_load(v) == want;
		usleep(5000);
	}
	return false;
}

static void memory(void)
{
	for (unsigned long n = 1;; n++) {
		atomic_store(&anonymous->up, n);
		atomic_store(&in_memfd->up, n);
		WANT(reached(&anonymous->down, n));
		WANT(reached(&in_memfd->down, n));
		round_done();
	}
}

static void memory_other(void)
{
	struct turns now;

	for (unsigned long n = 1;; n++) {
		WANT(reached(&anonymous->up, n));
		WANT(reached(&in_memfd->up, n));
		WANT(pread(mem_fd, &now, sizeof(now), 0) == sizeof(now) &&
		     now.up == n);
		atomic_store(&anonymous->down, n);
		atomic_store(&in_memfd->down, n);
		round_done();
	}
}

/* What parent and child had in common when they parted. */
#define COW_SIZE (1 << 20)
static unsigned char *cow_memory;

static void cow(void)
{
	for (unsigned long n = 0;; n++) {
		size_t at = n * 65536 % COW_SIZE;

		WANT(filled(cow_memory + at, 65536, at));
		round_done();
	}
}

static void cow_child(void)
{
	fill(cow_memory, COW_SIZE / 2, 12345);
	for (unsigned long n = 0;; n++) {
		size_t at = n * 65536 % COW_SIZE;

		WANT(filled(cow_memory + at, 65536,
			    at < COW_SIZE / 2 ? at + 12345 : at));
		round_done();
	}
}

static const char python_text[] =
	"import os, sys, time\n"
	"name, path, mb = 'python', sys.argv[1], int(sys.argv[2])\n"
	"big = [bytearray([i % 251]) * (1 << 20) for i in range(mb)]\n"
	"d = {i: str(i) for i in range(1000)}\n"
	"fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)\n"
	"def lines():\n"
	"    n = 0\n"
	"    while True:\n"
	"        n += 1\n"
	"        yield n\n"
	"g, word = lines(), 'ok'\n"
	"for n in g:\n"
	"    i = n % mb\n"
	"    if big[i] != bytes([i % 251]) * (1 << 20):\n"
	"        word = 'memory of block %d' % i\n"
	"    if d[n % 1000] != str(n % 1000):\n"
	"        word = 'dictionary'\n"
	"    line = '%s %d %d %s' % (name, os.getpid(), n, word)\n"
	"    os.pwrite(fd, line.ljust(159).encode() + b'\\n', 0)\n"
	"    time.sleep(0.04)\n";

#endif
