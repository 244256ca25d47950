/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "serve_keeper.h"

static size_t bucket_of(const char *id)
{
	uint32_t h = 2166136261u;

	for (; *id; id++)
		h = (h ^ (unsigned char)*id) * 16777619u;
	return h % HELD_BUCKETS;
}

struct held *held_find(const struct held_table *t, const char *id)
{
	struct held *h = t->buckets[bucket_of(id)];

	while (h && strcmp(h->id, id))
		h = h->next;
	return h;
}

static void held_free(struct held *h)
{
	for (size_t i = 0; i < h->nfds; i++)
		fd_close(h->fds[i].fd);
	json_decref(h->line);
	free(h->id);
	free(h);
}

void held_drop(struct held_table *t, const char *id)
{
	struct held **p = &t->buckets[bucket_of(id)], *h;

	while ((h = *p) && strcmp(h->id, id))
		p = &h->next;
	if (!h)
		return;
	*p = h->next;
	t->n--;
	held_free(h);
}

void held_done(struct held_table *t)
{
	for (size_t i = 0; i < HELD_BUCKETS; i++)
		while (t->buckets[i])
			held_drop(t, t->buckets[i]->id);
}

static struct held *held_new(struct held_table *t, const char *id)
{
	struct held **p = &t->buckets[bucket_of(id)];
	struct held *h = calloc(1, sizeof(*h));

	if (h)
		h->id = strdup(id);
	if (!h || !h->id) {
		free(h);
		return NULL;
	}
	h->next = *p;
	*p = h;
	t->n++;
	return h;
}

/* Sandboxes of one job have one policy: it is kept once. */
static void share_policy(const struct held_table *t, json_t *line)
{
	json_t *policy = json_object_get(line, "policy");
	const char *hash = json_str(line, "hash");

	for (size_t i = 0; i < HELD_BUCKETS; i++)
		for (struct held *h = t->buckets[i]; h; h = h->next) {
			json_t *other = h->line ? json_object_get(h->line,
								  "policy")
						: NULL;

			if (!other || other == policy ||
			    strcmp(json_str(h->line, "hash"), hash) ||
			    !json_equal(other, policy))
				continue;
			(void)json_object_set(line, "policy", other);
			return;
		}
}

static void drop_fds(struct held *h)
{
	for (size_t i = 0; i < h->nfds; i++)
		fd_close(h->fds[i].fd);
	h->nfds = 0;
}

/* "log" and "names" are files. */
static bool is_socket(const char *name)
{
	return !strncmp(name, "udp", 3) || !strncmp(name, "tcp", 3);
}

static int any_socket(const struct held *h)
{
	for (size_t i = 0; i < h->nfds; i++)
		if (is_socket(h->fds[i].name))
			return h->fds[i].fd;
	return -1;
}

static int put_fd(struct held *h, const char *name, int *fd)
{
	size_t i;

	for (i = 0; i < h->nfds && strcmp(h->fds[i].name, name); i++)
		;
	if (i == HELPER_FDS_MAX || strlen(name) >= sizeof(h->fds[i].name))
		return -E2BIG;
	if (i == h->nfds)
		h->nfds++;
	else
		fd_close(h->fds[i].fd);
	snprintf(h->fds[i].name, sizeof(h->fds[i].name), "%s", name);
	h->fds[i].fd = steal_fd(fd);
	return 0;
}

/* A slot is one sandbox's at a time: who had it before is not to come back with
 * the next worker. */
static void drop_slot(struct held_table *t, const struct held *keep)
{
	const char *iface = json_str(keep->line, "iface");

	for (size_t i = 0; *iface && i < HELD_BUCKETS; i++)
		for (struct held *h = t->buckets[i]; h; h = h->next)
			if (h != keep &&
			    !strcmp(json_str(h->line, "iface"), iface)) {
				held_drop(t, h->id);
				return;
			}
}

int held_put(struct held_table *t, struct chan_msg *m, struct err *e)
{
	json_t *names = json_object_get(m->obj, "fds");
	struct held *h = held_find(t, json_str(m->obj, "sandbox"));
	const char *name;

	if (!h)
		h = held_new(t, json_str(m->obj, "sandbox"));
	if (!h)
		return err_sys(e, ENOMEM, "keep a sandbox");
	for (size_t i = 0; i < m->nfds; i++) {
		name = json_string_value(json_array_get(names, i));
		if (is_socket(name) && any_socket(h) >= 0 &&
		    !same_netns(any_socket(h), m->fds[i]))
			drop_fds(h);
		if (put_fd(h, name, &m->fds[i]) < 0)
			return err_set(e, -E2BIG, "bad_value",
				       "descriptor '%s'", name);
	}
	json_decref(h->line);
	h->line = json_incref(m->obj);
	share_policy(t, h->line);
	json_object_del(h->line, "fds");
	json_object_del(h->line, "fresh");
	drop_slot(t, h);
	return 0;
}

bool held_detaches(const json_t *req, int64_t netns)
{
	int64_t of = json_int(req, "netns", 0);

	return !of || !netns || of == netns;
}

int held_policy(struct held_table *t, const struct chan_msg *m, struct err *e)
{
	struct held *h = held_find(t, json_str(m->obj, "sandbox"));

	if (!h)
		return 0;
	if (json_object_set(h->line, "policy",
			    json_object_get(m->obj, "policy")) < 0 ||
	    json_object_set(h->line, "hash", json_object_get(m->obj, "hash")) <
		    0)
		return err_sys(e, ENOMEM, "keep a policy");
	share_policy(t, h->line);
	return 0;
}

int held_send(const struct held *h, struct chan *c, struct err *e)
{
	auto_json json_t *line = json_copy(h->line);
	json_t *names = json_array();
	int fds[HELPER_FDS_MAX];

	for (size_t i = 0; i < h->nfds; i++) {
		fds[i] = h->fds[i].fd;
		json_array_append_new(names, json_string(h->fds[i].name));
	}
	if (!line || json_array_size(names) != h->nfds ||
	    json_object_set_new(line, "fds", json_incref(names)) < 0) {
		json_decref(names);
		return err_sys(e, ENOMEM, "attach");
	}
	json_decref(names);
	return chan_send(c, line, fds, h->nfds, e);
}

json_t *held_list(const struct held_table *t)
{
	json_t *list = json_array(), *rec;

	for (size_t i = 0; i < HELD_BUCKETS; i++)
		for (struct held *h = t->buckets[i]; h; h = h->next)
			json_array_append_new(list, json_string(h->id));
	if (json_pack_or(&rec, NULL, "{sb so}", "ok", 1, "sandboxes", list) < 0)
		return NULL;
	return rec;
}

static int by_number(const void *a, const void *b)
{
	return *(const int *)a - *(const int *)b;
}

json_t *held_ports(const struct held *h)
{
	json_t *list = json_array(), *rec;
	int ports[HELPER_FDS_MAX] = {0};
	size_t n = 0;

	for (size_t i = 0; i < h->nfds; i++)
		if (!strncmp(h->fds[i].name, "tcp", 3))
			ports[n++] = (int)strtol(h->fds[i].name + 3, NULL, 10);
	qsort(ports, n, sizeof(*ports), by_number);
	for (size_t i = 0; i < n; i++)
		json_array_append_new(list, json_integer(ports[i]));
	if (json_pack_or(&rec, NULL, "{sb so}", "ok", 1, "ports", list) < 0)
		return NULL;
	return rec;
}
