/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/hash.h"
#include "serve_worker.h"

#define PLACES 65536
#define NEAR   64 /* places that a sandbox's entry may be at */

/* A new page is all zeros: entries of nobody. */
struct totals {
	uint64_t key; /* of the id; 0: free */
	struct total total;
};

int totals_map(int *fd, struct totals **ret, struct err *e)
{
	size_t len = PLACES * sizeof(struct totals);
	struct stat st;
	void *m;

	if (*fd >= 0 && (fstat(*fd, &st) < 0 || st.st_size != (off_t)len))
		fd_close(steal_fd(fd));
	if (*fd < 0) {
		*fd = memfd_create("totals", MFD_CLOEXEC);
		if (*fd < 0 || ftruncate(*fd, (off_t)len) < 0)
			return err_sys(e, errno, "memory for counters");
	}
	m = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
	if (m == MAP_FAILED)
		return err_sys(e, errno, "memory for counters");
	*ret = m;
	return 0;
}

static uint64_t key_of(const char *id)
{
	uint64_t h = hash_fnv(id, strlen(id));

	return h ? h : 1;
}

static struct totals *find(struct totals *t, uint64_t near, uint64_t key)
{
	for (uint64_t i = 0; i < NEAR; i++) {
		struct totals *at = &t[(near + i) % PLACES];

		if (at->key == key)
			return at;
	}
	return NULL;
}

struct total *totals_get(struct totals *t, const char *id)
{
	uint64_t key = key_of(id);
	struct totals *at = find(t, key, key);

	if (!at)
		at = find(t, key, 0);
	if (!at)
		return NULL;
	at->key = key;
	return &at->total;
}

void totals_drop(struct totals *t, const char *id)
{
	uint64_t key = key_of(id);
	struct totals *at = find(t, key, key);

	if (at)
		memset(at, 0, sizeof(*at));
}
