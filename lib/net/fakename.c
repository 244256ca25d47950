/* SPDX-License-Identifier: Apache-2.0 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "net/fakename.h"
#include "policy/netname.h"

#define FILE_MAX   (2 * 1024 * 1024)
#define LINE_BYTES (NETNAME_MAX + 32)
#define SPAN	   ((1u << FAKENAME_BITS) - FAKENAME_FIRST)

struct entry {
	uint32_t addr; /* host order */
	char *name;
};

/*
 * Two tables of open addressing lead to the entries, by name and by address;
 * a slot is an entry's number plus one.  They have twice as many slots as there
 * is room for entries.
 */
struct fakename {
	int fd;
	bool torn; /* the file ends within a line */
	struct entry *entries;
	size_t n, room;
	uint16_t *by_name, *by_addr;
	unsigned cost;
};

static uint32_t hash_name(const char *name)
{
	uint32_t h = 2166136261u;

	for (; *name; name++)
		h = (h ^ (uint8_t)*name) * 16777619u;
	return h ^ h >> 15;
}

static uint32_t hash_addr(uint32_t addr)
{
	return addr * 2654435761u >> 8;
}

static struct entry *find_name(const struct fakename *f, const char *name)
{
	size_t mask = 2 * f->room - 1, i = hash_name(name) & mask;

	for (; f->room && f->by_name[i]; i = (i + 1) & mask)
		if (!strcmp(f->entries[f->by_name[i] - 1].name, name))
			return &f->entries[f->by_name[i] - 1];
	return NULL;
}

static struct entry *find_addr(const struct fakename *f, uint32_t addr)
{
	size_t mask = 2 * f->room - 1, i = hash_addr(addr) & mask;

	for (; f->room && f->by_addr[i]; i = (i + 1) & mask)
		if (f->entries[f->by_addr[i] - 1].addr == addr)
			return &f->entries[f->by_addr[i] - 1];
	return NULL;
}

static void index_entry(struct fakename *f, size_t k)
{
	size_t mask = 2 * f->room - 1, i;

	for (i = hash_name(f->entries[k].name) & mask; f->by_name[i];)
		i = (i + 1) & mask;
	f->by_name[i] = (uint16_t)(k + 1);
	for (i = hash_addr(f->entries[k].addr) & mask; f->by_addr[i];)
		i = (i + 1) & mask;
	f->by_addr[i] = (uint16_t)(k + 1);
}

static int grow(struct fakename *f)
{
	size_t room = f->room ? 2 * f->room : 16;
	auto_free uint16_t *a = calloc(2 * room, sizeof(*a));
	auto_free uint16_t *b = calloc(2 * room, sizeof(*b));
	struct entry *entries;

	if (!a || !b)
		return -ENOMEM;
	entries = reallocarray(f->entries, room, sizeof(*entries));
	if (!entries)
		return -ENOMEM;
	free(f->by_name);
	free(f->by_addr);
	f->entries = entries;
	f->by_name = steal_ptr(a);
	f->by_addr = steal_ptr(b);
	f->room = room;
	for (size_t k = 0; k < f->n; k++)
		index_entry(f, k);
	return 0;
}

static int add(struct fakename *f, const char *name, uint32_t addr)
{
	char *copy;

	if (f->n == f->room && grow(f) < 0)
		return -ENOMEM;
	copy = strdup(name);
	if (!copy)
		return -ENOMEM;
	f->entries[f->n] = (struct entry){addr, copy};
	index_entry(f, f->n++);
	return 0;
}

static unsigned cost_of(const char *name)
{
	size_t len = strlen(name), label = 0;

	if (len > FAKENAME_LONG)
		return FAKENAME_LONG_COST;
	for (; *name; name++) {
		label = *name == '.' ? 0 : label + 1;
		if (label > FAKENAME_LABEL)
			return FAKENAME_LONG_COST;
	}
	return 1;
}

static bool is_fake(uint32_t addr)
{
	return addr - FAKENAME_NET - FAKENAME_FIRST < SPAN;
}

/* "ADDRESS NAME" or "ADDRESS NAME wild". */
static int load_line(struct fakename *f, char *line)
{
	char *name, *wild, canon[NETNAME_MAX + 1];
	struct in_addr in;

	name = strchr(line, ' ');
	if (!name)
		return 0;
	*name++ = '\0';
	wild = strchr(name, ' ');
	if (wild)
		*wild++ = '\0';
	if (inet_pton(AF_INET, line, &in) != 1 || !is_fake(ntohl(in.s_addr)) ||
	    netname_canon(name, strlen(name), canon) < 0 ||
	    (wild && strcmp(wild, "wild")) || f->n == FAKENAME_MAX ||
	    find_name(f, canon) || find_addr(f, ntohl(in.s_addr)))
		return 0;
	if (wild)
		f->cost += cost_of(canon);
	return add(f, canon, ntohl(in.s_addr));
}

static int load(struct fakename *f, int fd, struct err *e)
{
	auto_free char *text = NULL;
	char *line, *end;
	size_t len;
	int r;

	if (lseek(fd, 0, SEEK_SET) < 0)
		return err_sys(e, errno, "read the names");
	r = fd_read_all(fd, FILE_MAX, &text, &len, e);
	if (r < 0)
		return err_wrap(e, r, "read the names");
	f->torn = len && text[len - 1] != '\n';
	for (line = text; (end = strchr(line, '\n')); line = end + 1) {
		*end = '\0';
		r = load_line(f, line);
		if (r < 0)
			return err_sys(e, -r, "read the names");
	}
	return 0;
}

int fakename_new(int fd, struct fakename **ret, struct err *e)
{
	struct fakename *f = calloc(1, sizeof(*f));
	int r;

	if (!f)
		return err_sys(e, ENOMEM, "names");
	f->fd = -1;
	r = fd < 0 ? 0 : load(f, fd, e);
	if (r < 0) {
		fakename_free(f);
		return r;
	}
	f->fd = fd;
	*ret = f;
	return 0;
}

void fakename_free(struct fakename *f)
{
	if (!f)
		return;
	for (size_t i = 0; i < f->n; i++)
		free(f->entries[i].name);
	free(f->entries);
	free(f->by_name);
	free(f->by_addr);
	if (f->fd >= 0)
		fd_close(f->fd);
	free(f);
}

/* A part of a line stays behind at most; the next one spoils it. */
static int append(struct fakename *f, const char *name, bool wild,
		  struct in_addr in)
{
	char line[LINE_BYTES], ip[INET_ADDRSTRLEN];
	ssize_t n;
	int len;

	if (f->fd < 0)
		return 0;
	inet_ntop(AF_INET, &in, ip, sizeof(ip));
	len = snprintf(line, sizeof(line), "%s%s %s%s\n", f->torn ? "!\n" : "",
		       ip, name, wild ? " wild" : "");
	if (len < 0 || (size_t)len >= sizeof(line))
		return -EIO;
	n = write(f->fd, line, (size_t)len);
	if (n > 0)
		f->torn = n < len;
	return n == len ? 0 : -EIO;
}

static uint32_t free_addr(const struct fakename *f, const char *name)
{
	uint32_t i = hash_name(name) % SPAN;

	while (find_addr(f, FAKENAME_NET + FAKENAME_FIRST + i))
		i = (i + 1) % SPAN;
	return FAKENAME_NET + FAKENAME_FIRST + i;
}

int fakename_get(struct fakename *f, const char *name, bool wild,
		 struct in_addr *ret)
{
	const struct entry *known = find_name(f, name);
	unsigned cost = wild ? cost_of(name) : 0;
	struct in_addr in;

	if (known) {
		ret->s_addr = htonl(known->addr);
		return 0;
	}
	if (f->cost + cost > FAKENAME_BUDGET || f->n == FAKENAME_MAX)
		return -ENOSPC;
	in.s_addr = htonl(free_addr(f, name));
	/* Room first: what the file has is remembered here as well. */
	if (f->n == f->room && grow(f) < 0)
		return -EIO;
	if (append(f, name, wild, in) < 0 || add(f, name, ntohl(in.s_addr)) < 0)
		return -EIO;
	f->cost += cost;
	*ret = in;
	return 0;
}

const char *fakename_name(const struct fakename *f, struct in_addr addr)
{
	const struct entry *en = find_addr(f, ntohl(addr.s_addr));

	return en ? en->name : NULL;
}

size_t fakename_count(const struct fakename *f)
{
	return f->n;
}

unsigned fakename_cost(const struct fakename *f)
{
	return f->cost;
}
