/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "box/tree.h"
#include "serve.h"
#include "serve_keeper.h"
#include "sys/confine.h"
#include "wire/exit.h"
#include "wire/record.h"

/*
 * A keeper becomes another program by exec, with its descriptors under their
 * numbers and the rest in a file in memory:
 *   {"listener","lock","broker","totals","client","transit":[..],"config":{..},
 *    "policies":{HASH:{..}},"held":[{"line":{..},"fds":{NAME:FD}}]}
 */

extern char **environ;

static int keep_fd(int fd, bool on)
{
	return fd < 0 ? 0 : fcntl(fd, F_SETFD, on ? 0 : FD_CLOEXEC);
}

/* Open over the exec, or not. */
static int keep_fds(const struct keeper *k, int client, bool on)
{
	int r = keep_fd(k->listener_fd, on) | keep_fd(k->lock, on) |
		keep_fd(k->broker, on) | keep_fd(k->totals_fd, on) |
		keep_fd(client, on);

	for (size_t i = 0; i < array_len(k->transit); i++)
		r |= keep_fd(k->transit[i], on);
	for (size_t b = 0; b < HELD_BUCKETS; b++)
		for (struct held *h = k->held.buckets[b]; h; h = h->next)
			for (size_t i = 0; i < h->nfds; i++)
				r |= keep_fd(h->fds[i].fd, on);
	return r;
}

/* A sandbox, its policy apart. */
static int held_state(const struct held *h, json_t *list, json_t *policies)
{
	json_t *one = json_object(), *fds = json_object();
	json_t *line = json_copy(h->line);
	int r;

	r = json_object_set(policies, json_str(line, "hash"),
			    json_object_get(line, "policy"));
	r |= json_object_del(line, "policy");
	for (size_t i = 0; i < h->nfds; i++)
		r |= json_object_set_new(fds, h->fds[i].name,
					 json_integer(h->fds[i].fd));
	r |= json_object_set_new(one, "line", line);
	r |= json_object_set_new(one, "fds", fds);
	return r | json_array_append_new(list, one);
}

static int state_of(const struct keeper *k, int client, json_t *config,
		    json_t **ret, struct err *e)
{
	auto_json json_t *s = NULL;
	json_t *transit = json_array(), *held = json_array();
	json_t *policies = json_object();
	int r = 0;

	for (size_t i = 0; i < array_len(k->transit); i++)
		r |= json_array_append_new(transit,
					   json_integer(k->transit[i]));
	for (size_t b = 0; b < HELD_BUCKETS; b++)
		for (struct held *h = k->held.buckets[b]; h; h = h->next)
			r |= held_state(h, held, policies);
	if (json_pack_or(&s, e, "{si si si si si sO so so so}", "listener",
			 k->listener_fd, "lock", k->lock, "broker", k->broker,
			 "totals", k->totals_fd, "client", client, "config",
			 config, "transit", transit, "held", held, "policies",
			 policies) < 0 ||
	    r < 0)
		return err_sys(e, ENOMEM, "what to hand over");
	*ret = steal_ptr(s);
	return 0;
}

static int write_state(const json_t *s, struct err *e)
{
	auto_close int fd = memfd_create("state", 0);

	if (fd < 0)
		return err_sys(e, errno, "memory file");
	if (json_dumpfd(s, fd, JSON_COMPACT) < 0 || lseek(fd, 0, SEEK_SET) < 0)
		return err_set(e, -EIO, "io", "what to hand over");
	return steal_fd(&fd);
}

int handover(struct client *c, struct chan_msg *m, struct err *e)
{
	struct keeper *k = c->keeper;
	auto_close int program = chan_take(m, "program");
	auto_close int fd = -1;
	auto_json json_t *s = NULL;
	char number[16];
	char *argv[] = {(char[]){"dsec-net"}, (char[]){"--serve"},
			(char[]){"--adopt"}, number, NULL};
	int r;

	if (program < 0)
		return err_set(e, -EINVAL, "bad_value", "no 'program'");
	if (k->asked)
		return err_set(e, -EBUSY, "busy", "the helper has work to do");
	r = state_of(k, c->chan.fd, json_object_get(m->obj, "config"), &s, e);
	if (r < 0)
		return r;
	fd = write_state(s, e);
	if (fd < 0)
		return fd;
	snprintf(number, sizeof(number), "%d", fd);
	note("hands over to another program");
	worker_stop(k);
	if (keep_fds(k, c->chan.fd, true) < 0)
		r = err_sys(e, errno, "keep descriptors");
	else if (execveat(program, "", argv, environ, AT_EMPTY_PATH) < 0)
		r = err_sys(e, errno, "run the new program");
	keep_fds(k, c->chan.fd, false);
	worker_start(k);
	return r;
}

/* --- the new one --------------------------------------------------------- */

static int number(const json_t *o, const char *key)
{
	return (int)json_int(o, key, -1);
}

static int adopt_one(struct keeper *k, const json_t *one,
		     const json_t *policies, struct err *e)
{
	auto_chan_msg struct chan_msg m = {0};
	json_t *line = json_object_get(one, "line"), *names = json_array(), *v;
	const char *name;

	m.obj = json_incref(line);
	json_object_foreach(json_object_get(one, "fds"), name, v) {
		if (m.nfds == HELPER_FDS_MAX)
			break;
		m.fds[m.nfds++] = (int)json_integer_value(v);
		json_array_append_new(names, json_string(name));
	}
	json_object_set_new(m.obj, "fds", names);
	json_object_set(m.obj, "policy",
			json_object_get(policies, json_str(line, "hash")));
	return held_put(&k->held, &m, e);
}

int adopt(struct keeper *k, const json_t *state, struct err *e)
{
	json_t *one;
	struct client *c;
	size_t i;
	int r = 0;

	json_array_foreach(json_object_get(state, "held"), i, one) {
		r = adopt_one(k, one, json_object_get(state, "policies"), e);
		if (r < 0)
			return r;
	}
	keep_fds(k, number(state, "client"), false);
	c = client_new(k, number(state, "client"));
	if (c)
		client_answer(c, record_ok(NULL));
	return 0;
}

static int adopt_run(json_t *state, struct err *e)
{
	auto_netconf struct netconf conf = {0};
	json_t *t = json_object_get(state, "transit");
	struct keeper_start start = {
		.listener = number(state, "listener"),
		.lock = number(state, "lock"),
		.broker = number(state, "broker"),
		.totals = number(state, "totals"),
		.conf = &conf,
		.state = state,
	};
	int *const fds[] = {&start.transit.nft,	    &start.transit.log,
			    &start.transit.dns_udp, &start.transit.dns_tcp,
			    &start.transit.sni,	    &start.transit.broker};
	int r;

	for (size_t i = 0; i < array_len(fds); i++)
		*fds[i] = (int)json_integer_value(json_array_get(t, i));
	r = confine_state(e);
	if (r == 0)
		r = netconf_of(json_object_get(state, "config"), &conf, e);
	return r < 0 ? r : keeper_run(&start, e);
}

int serve_adopt(int fd)
{
	auto_json json_t *state = NULL;
	struct err e = {0};
	int r;

	state = json_loadfd(fd, 0, NULL);
	fd_close(fd);
	r = state ? adopt_run(state, &e)
		  : err_set(&e, -EBADMSG, "internal", "no state to adopt");
	note("ends");
	if (r < 0)
		log_err(&e);
	return r < 0 ? exit_of(&e) : EXIT_OK;
}

/* --- who asks for it ----------------------------------------------------- */

static int ask(struct helper *h, const struct netconf *conf, struct err *e)
{
	auto_close int program = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	auto_json json_t *req = NULL;
	int r;

	if (program < 0)
		return err_sys(e, errno, "open our own program");
	r = json_pack_or(&req, e, "{ss sO s[s]}", "op", "handover", "config",
			 conf->file, "fds", "program");
	if (r == 0)
		r = helper_send(h, req, &program, 1, e);
	return r < 0 ? r : helper_answer(h, NULL, e);
}

int serve_upgrade(void)
{
	auto_helper struct helper *h = NULL;
	auto_netconf struct netconf conf = {0};
	struct tree t;
	struct err e = {0};
	int r;

	r = tree_init(&t, &e);
	if (r == 0)
		r = netconf_load(t.config, &conf, &e);
	if (r == 0)
		r = helper_open(t.run, 0, &h, &e);
	if (r == 0)
		r = ask(h, &conf, &e);
	if (r < 0)
		log_err(&e);
	return r < 0 ? exit_of(&e) : EXIT_OK;
}
